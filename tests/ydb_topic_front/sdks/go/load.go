package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	ydb "github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicoptions"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicreader"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topictypes"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicwriter"
)

// pause is what a writer leaves to others between two messages.
const pause = 10 * time.Millisecond

// loader keeps working while nodes end: a writer for each partition, which waits for each acknowledgement, and a reader.
// It prints a line for everything it is told: "acked WRITER NUMBER", "read PARTITION OFFSET VALUE", "failed WHAT". Writers
// stop when the input ends, and print "over WRITER"; the reader goes on until the program is killed.
type loader struct {
	db   *ydb.Driver
	path string
	over chan struct{}
	out  sync.Mutex
}

func (l *loader) tell(words ...any) {
	l.out.Lock()
	defer l.out.Unlock()
	fmt.Println(words...)
}

func (l *loader) write(ctx context.Context, name string, partition int64) error {
	writer, err := l.db.Topic().StartWriter(l.path,
		topicoptions.WithWriterProducerID(name),
		topicoptions.WithWriterPartitionID(partition),
		topicoptions.WithWriterSetAutoSeqNo(false),
		topicoptions.WithWriterWaitServerAck(true),
		topicoptions.WithWriterCodec(topictypes.CodecRaw))
	if err != nil {
		return err
	}
	for number := int64(1); ; number++ {
		select {
		case <-l.over:
			return writer.Close(ctx)
		default:
		}
		value := strings.NewReader(fmt.Sprintf("%s.%d", name, number))
		if err := writer.Write(ctx, topicwriter.Message{SeqNo: number, Data: value}); err != nil {
			return err
		}
		l.tell("acked", name, number)
		time.Sleep(pause)
	}
}

func (l *loader) read(ctx context.Context, consumer string) error {
	reader, err := l.db.Topic().StartReader(consumer, topicoptions.ReadTopic(l.path))
	if err != nil {
		return err
	}
	for {
		batch, err := reader.ReadMessagesBatch(ctx)
		if err != nil {
			return err
		}
		for _, message := range batch.Messages {
			value, err := io.ReadAll(message)
			if err != nil {
				return err
			}
			l.tell("read", message.PartitionID(), message.Offset, string(bytes.TrimSpace(value)))
		}
		if err := reader.Commit(ctx, batch); err != nil && !errors.Is(err, topicreader.ErrCommitToExpiredSession) {
			return err
		}
	}
}

// load works for ENDPOINT/DATABASE TOPIC NAME CONSUMER PARTITION...
func load(arguments []string) error {
	ctx := context.Background()
	db, err := ydb.Open(ctx, "grpc://"+arguments[0])
	if err != nil {
		return err
	}
	l := loader{db: db, path: arguments[1], over: make(chan struct{})}
	go func() {
		if err := l.read(ctx, arguments[3]); err != nil {
			l.tell("failed reader", err)
		}
	}()
	for _, partition := range arguments[4:] {
		number, err := strconv.ParseInt(partition, 10, 64)
		if err != nil {
			return err
		}
		go func() {
			name := arguments[2] + partition
			if err := l.write(ctx, name, number); err != nil {
				l.tell("failed", name, err)
			}
			l.tell("over", name)
		}()
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	close(l.over)
	select {}
}

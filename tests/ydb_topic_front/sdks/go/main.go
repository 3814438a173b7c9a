// Driver of the YDB Go SDK tests: reads commands as JSON lines from standard input, prints one JSON line for each.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	ydb "github.com/ydb-platform/ydb-go-sdk/v3"
	"github.com/ydb-platform/ydb-go-sdk/v3/query"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicoptions"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicreader"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topictypes"
	"github.com/ydb-platform/ydb-go-sdk/v3/topic/topicwriter"
)

const patience = 40 * time.Second

// step is how long a transaction may take before its outcome is looked up.
const step = 5 * time.Second

type message struct {
	Seq      int64             `json:"seq"`
	Data     []byte            `json:"data"`
	Metadata map[string][]byte `json:"metadata"`
}

type got struct {
	Partition int64             `json:"partition"`
	Offset    int64             `json:"offset"`
	Seq       int64             `json:"seq"`
	Producer  string            `json:"producer"`
	Data      []byte            `json:"data"`
	Metadata  map[string][]byte `json:"metadata"`
}

type command struct {
	Op         string    `json:"op"`
	Endpoint   string    `json:"endpoint"`
	Database   string    `json:"database"`
	User       string    `json:"user"`
	Password   string    `json:"password"`
	CA         string    `json:"ca"`
	Path       string    `json:"path"`
	Partitions int64     `json:"partitions"`
	Partition  *int64    `json:"partition"`
	Consumer   string    `json:"consumer"`
	Consumers  []string  `json:"consumers"`
	Codecs     []int32   `json:"codecs"`
	Codec      int32     `json:"codec"`
	Producer   string    `json:"producer"`
	Messages   []message `json:"messages"`
	First      int64     `json:"first"`
	Count      int       `json:"count"`
	Prefix     string    `json:"prefix"`
	Commit     bool      `json:"commit"`
	Target     string    `json:"target"`
}

type driver struct {
	connections map[string]*ydb.Driver
}

// connect keeps one connection for each address and user.
func (d *driver) connect(ctx context.Context, c command) (*ydb.Driver, error) {
	scheme := "grpc"
	if c.CA != "" {
		scheme = "grpcs"
	}
	url := fmt.Sprintf("%s://%s%s", scheme, c.Endpoint, c.Database)
	key := strings.Join([]string{url, c.User, c.Password, c.CA}, "|")
	if found := d.connections[key]; found != nil {
		return found, nil
	}
	var options []ydb.Option
	if c.User != "" {
		options = append(options, ydb.WithStaticCredentials(c.User, c.Password))
	}
	if c.CA != "" {
		options = append(options, ydb.WithCertificatesFromFile(c.CA))
	}
	opened, err := ydb.Open(ctx, url, options...)
	if err == nil {
		d.connections[key] = opened
	}
	return opened, err
}

func codecs(numbers []int32) []topictypes.Codec {
	found := make([]topictypes.Codec, len(numbers))
	for i, number := range numbers {
		found[i] = topictypes.Codec(number)
	}
	return found
}

func (d *driver) write(ctx context.Context, db *ydb.Driver, c command, messages []message, atOnce int) error {
	options := []topicoptions.WriterOption{
		topicoptions.WithWriterProducerID(c.Producer),
		topicoptions.WithWriterSetAutoSeqNo(false),
		topicoptions.WithWriterWaitServerAck(true),
		topicoptions.WithWriterCodec(topictypes.Codec(c.Codec)),
	}
	if c.Partition != nil {
		options = append(options, topicoptions.WithWriterPartitionID(*c.Partition))
	}
	writer, err := db.Topic().StartWriter(c.Path, options...)
	if err != nil {
		return err
	}
	for len(messages) > 0 {
		n := min(atOnce, len(messages))
		batch := make([]topicwriter.Message, n)
		for i, m := range messages[:n] {
			batch[i].SeqNo = m.Seq
			batch[i].Data = bytes.NewReader(m.Data)
			batch[i].Metadata = m.Metadata
		}
		if err := writer.Write(ctx, batch...); err != nil {
			_ = writer.Close(ctx)
			return err
		}
		messages = messages[n:]
	}
	return writer.Close(ctx)
}

func (d *driver) read(ctx context.Context, db *ydb.Driver, c command) (any, error) {
	mode := topicoptions.WithReaderCommitMode(topicoptions.CommitModeSync)
	reader, err := db.Topic().StartReader(c.Consumer, topicoptions.ReadTopic(c.Path), mode)
	if err != nil {
		return nil, err
	}
	defer reader.Close(ctx)
	found := []got{}
	for len(found) < c.Count {
		batch, err := reader.ReadMessagesBatch(ctx, topicreader.WithBatchMaxCount(c.Count-len(found)))
		if err != nil {
			return nil, fmt.Errorf("after %d messages: %w", len(found), err)
		}
		for _, m := range batch.Messages {
			data, err := io.ReadAll(m)
			if err != nil {
				return nil, err
			}
			found = append(found, got{m.PartitionID(), m.Offset, m.SeqNo, m.ProducerID, data, m.Metadata})
		}
		if c.Commit {
			if err := reader.Commit(ctx, batch); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// copyAll copies a topic of one partition to another topic, in transactions, until the consumer has committed count
// messages. What a node's death breaks is done again, as the SDK's user would.
func (d *driver) copyAll(ctx context.Context, db *ydb.Driver, c command) error {
	reader, err := db.Topic().StartReader(c.Consumer, topicoptions.ReadTopic(c.Path))
	if err != nil {
		return err
	}
	defer reader.Close(ctx)
	for {
		found, err := db.Topic().DescribeTopicConsumer(ctx, c.Path, c.Consumer, topicoptions.IncludeConsumerStats())
		if err != nil {
			return err
		}
		if found.Partitions[0].PartitionConsumerStats.CommittedOffset >= int64(c.Count) {
			return nil
		}
		once, cancel := context.WithTimeout(ctx, step)
		err = db.Query().DoTx(once, func(ctx context.Context, tx query.TxActor) error {
			writer, err := db.Topic().StartTransactionalWriter(tx, c.Target)
			if err != nil {
				return err
			}
			batch, err := reader.PopMessagesBatchTx(ctx, tx, topicreader.WithBatchMaxCount(3))
			if err != nil {
				return err
			}
			for _, m := range batch.Messages {
				if err := writer.Write(ctx, topicwriter.Message{Data: m}); err != nil {
					return err
				}
			}
			return nil
		}, query.WithIdempotent())
		cancel()
		if err != nil && ctx.Err() != nil {
			return err
		}
	}
}

func (d *driver) run(c command) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	db, err := d.connect(ctx, c)
	if err != nil {
		return nil, err
	}
	switch c.Op {
	case "create":
		consumers := make([]topictypes.Consumer, len(c.Consumers))
		for i, name := range c.Consumers {
			consumers[i] = topictypes.Consumer{Name: name}
		}
		return nil, db.Topic().Create(ctx, c.Path,
			topicoptions.CreateWithMinActivePartitions(c.Partitions),
			topicoptions.CreateWithSupportedCodecs(codecs(c.Codecs)...),
			topicoptions.CreateWithConsumer(consumers...))
	case "add_consumer":
		return nil, db.Topic().Alter(ctx, c.Path,
			topicoptions.AlterWithAddConsumers(topictypes.Consumer{Name: c.Consumer}))
	case "describe":
		topic, err := db.Topic().Describe(ctx, c.Path)
		if err != nil {
			return nil, err
		}
		partitions, consumers, supported := []int64{}, []string{}, []int32{}
		for _, p := range topic.Partitions {
			partitions = append(partitions, p.PartitionID)
		}
		for _, consumer := range topic.Consumers {
			consumers = append(consumers, consumer.Name)
		}
		for _, codec := range topic.SupportedCodecs {
			supported = append(supported, int32(codec))
		}
		return map[string]any{"partitions": partitions, "consumers": consumers, "codecs": supported}, nil
	case "drop":
		return nil, db.Topic().Drop(ctx, c.Path)
	case "write":
		return nil, d.write(ctx, db, c, c.Messages, max(1, len(c.Messages)))
	case "write_many":
		many := make([]message, c.Count)
		for i := range many {
			many[i] = message{Seq: c.First + int64(i), Data: fmt.Appendf(nil, "%s%d", c.Prefix, i)}
		}
		return nil, d.write(ctx, db, c, many, 10)
	case "read":
		return d.read(ctx, db, c)
	case "copy":
		return nil, d.copyAll(ctx, db, c)
	}
	return nil, errors.New("no such command: " + c.Op)
}

func main() {
	if len(os.Args) > 1 {
		if err := load(os.Args[1:]); err != nil {
			panic(err)
		}
	}
	d := driver{connections: map[string]*ydb.Driver{}}
	lines := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			panic(err)
		}
		result, err := d.run(c)
		answer := map[string]any{"result": result}
		if err != nil {
			answer = map[string]any{"error": fmt.Sprintf("%T", err), "message": err.Error()}
		}
		if err := out.Encode(answer); err != nil {
			panic(err)
		}
	}
}

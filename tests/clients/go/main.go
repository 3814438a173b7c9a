// Driver of the franz-go client tests: reads commands as JSON lines from standard input, prints one JSON line for each.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const patience = 40 * time.Second

type header struct {
	Name  string
	Value []byte
}

func (h header) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.Name, h.Value}) }

func (h *header) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&h.Name, &h.Value})
}

type record struct {
	Partition int32    `json:"partition"`
	Offset    int64    `json:"offset"`
	Timestamp *int64   `json:"timestamp"`
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []header `json:"headers"`
}

type round struct {
	Commit  bool
	Records []record
}

func (r *round) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[]any{&r.Commit, &r.Records})
}

type command struct {
	Op              string            `json:"op"`
	Bootstrap       string            `json:"bootstrap"`
	Topic           string            `json:"topic"`
	Group           string            `json:"group"`
	Protocol        string            `json:"protocol"`
	Partition       int32             `json:"partition"`
	Partitions      int32             `json:"partitions"`
	Records         []record          `json:"records"`
	Codec           string            `json:"codec"`
	Idempotent      bool              `json:"idempotent"`
	Counts          map[string]int    `json:"counts"`
	Starts          map[string]int64  `json:"starts"`
	Isolation       string            `json:"isolation"`
	Count           int               `json:"count"`
	TransactionalID string            `json:"transactional_id"`
	Rounds          []round           `json:"rounds"`
	Config          map[string]string `json:"config"`
	Values          map[string]string `json:"values"`
	Total           int               `json:"total"`
	Before          int64             `json:"before"`
	At              any               `json:"at"`
}

type answer struct {
	Result  any    `json:"result"`
	Error   *int16 `json:"error,omitempty"`
	Message string `json:"message,omitempty"`
}

func main() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var cmd command
		var result any
		err = json.Unmarshal(line, &cmd)
		if err == nil {
			result, err = run(&cmd)
		}
		reply := answer{Result: result}
		if err != nil {
			code := int16(-1)
			var refused *kerr.Error
			if errors.As(err, &refused) {
				code = refused.Code
			}
			reply = answer{Error: &code, Message: err.Error()}
		}
		if err := out.Encode(reply); err != nil {
			return
		}
	}
}

func run(cmd *command) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch cmd.Op {
	case "produce":
		return produce(ctx, cmd)
	case "consume":
		return consume(ctx, cmd)
	case "consume_group":
		return consumeGroup(ctx, cmd)
	case "share":
		return share(ctx, cmd)
	case "offsets_topic":
		return offsetsTopic(ctx, cmd)
	case "share_group":
		return shareGroup(ctx, cmd)
	case "transact":
		return nil, transact(ctx, cmd)
	}
	client, err := connect(cmd)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return administer(ctx, cmd, kadm.NewClient(client))
}

func connect(cmd *command, more ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(cmd.Bootstrap), kgo.FetchMaxWait(100 * time.Millisecond)}, more...)...)
}

// ---- producing

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func kafkaRecords(topic string, partition int32, records []record) []*kgo.Record {
	made := make([]*kgo.Record, 0, len(records))
	for _, r := range records {
		one := &kgo.Record{Topic: topic, Partition: partition, Key: r.Key, Value: r.Value}
		if r.Timestamp != nil {
			one.Timestamp = time.UnixMilli(*r.Timestamp)
		}
		for _, h := range r.Headers {
			one.Headers = append(one.Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
		}
		made = append(made, one)
	}
	return made
}

func produce(ctx context.Context, cmd *command) (any, error) {
	options := []kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[cmd.Codec]),
		kgo.ProducerLinger(20 * time.Millisecond),
	}
	if !cmd.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := connect(cmd, options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	results := client.ProduceSync(ctx, kafkaRecords(cmd.Topic, cmd.Partition, cmd.Records)...)
	if err := results.FirstErr(); err != nil {
		return nil, err
	}
	offsets := make([]int64, 0, len(results))
	for _, result := range results {
		offsets = append(offsets, result.Record.Offset)
	}
	// Acknowledgements arrive in whatever order; the records of one partition were written in the order given.
	sort.Slice(offsets, func(a, b int) bool { return offsets[a] < offsets[b] })
	return offsets, nil
}

func transact(ctx context.Context, cmd *command) error {
	client, err := connect(cmd,
		kgo.TransactionalID(cmd.TransactionalID), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	for _, one := range cmd.Rounds {
		if err := client.BeginTransaction(); err != nil {
			return err
		}
		if err := client.ProduceSync(ctx, kafkaRecords(cmd.Topic, 0, one.Records)...).FirstErr(); err != nil {
			return err
		}
		if err := client.EndTransaction(ctx, kgo.TransactionEndTry(one.Commit)); err != nil {
			return err
		}
	}
	return nil
}

// ---- consuming

func asJSON(r *kgo.Record) record {
	stamp := r.Timestamp.UnixMilli()
	one := record{Partition: r.Partition, Offset: r.Offset, Timestamp: &stamp, Key: r.Key, Value: r.Value, Headers: []header{}}
	for _, h := range r.Headers {
		one.Headers = append(one.Headers, header{h.Key, h.Value})
	}
	return one
}

func poll(ctx context.Context, client *kgo.Client, atMost int) (kgo.Fetches, error) {
	fetches := client.PollRecords(ctx, atMost)
	for _, failed := range fetches.Errors() {
		return nil, failed.Err
	}
	return fetches, nil
}

func consume(ctx context.Context, cmd *command) (any, error) {
	offsets := map[int32]kgo.Offset{}
	left := map[int32]int{}
	missing := 0
	for name, count := range cmd.Counts {
		number, err := strconv.Atoi(name)
		if err != nil {
			return nil, err
		}
		partition := int32(number)
		offsets[partition] = kgo.NewOffset().AtStart()
		if start, given := cmd.Starts[name]; given {
			offsets[partition] = kgo.NewOffset().At(start)
		}
		left[partition] = count
		missing += count
	}
	options := []kgo.Opt{kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{cmd.Topic: offsets})}
	if cmd.Isolation == "read_committed" {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	client, err := connect(cmd, options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	got := []record{}
	for missing > 0 {
		fetches, err := poll(ctx, client, 10_000)
		if err != nil {
			return nil, fmt.Errorf("still missing %v after %d records: %w", left, len(got), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if left[r.Partition] > 0 {
				left[r.Partition]--
				missing--
				got = append(got, asJSON(r))
			}
		})
	}
	return got, nil
}

func member(cmd *command, more ...kgo.Opt) (*kgo.Client, error) {
	options := []kgo.Opt{
		kgo.ConsumerGroup(cmd.Group),
		kgo.ConsumeTopics(cmd.Topic),
		kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(300 * time.Millisecond),
		kgo.SessionTimeout(10 * time.Second),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	if cmd.Protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer())
	}
	return connect(cmd, append(options, more...)...)
}

func consumeGroup(ctx context.Context, cmd *command) (any, error) {
	client, err := member(cmd)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	got := []record{}
	for len(got) < cmd.Count {
		fetches, err := poll(ctx, client, cmd.Count-len(got))
		if err != nil {
			return nil, fmt.Errorf("only %d of %d records: %w", len(got), cmd.Count, err)
		}
		fetches.EachRecord(func(r *kgo.Record) { got = append(got, asJSON(r)) })
	}
	if err := client.CommitUncommittedOffsets(ctx); err != nil {
		return nil, err
	}
	return got, client.LeaveGroupContext(ctx)
}

// holder follows what is assigned to one member; changes are announced on a channel.
type holder struct {
	client *kgo.Client
	change chan func(map[int32]bool)
	held   map[int32]bool
}

func join(cmd *command) (*holder, error) {
	h := &holder{change: make(chan func(map[int32]bool), 64), held: map[int32]bool{}}
	gone := func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
		h.change <- func(held map[int32]bool) {
			for _, p := range parts[cmd.Topic] {
				delete(held, p)
			}
		}
	}
	client, err := member(cmd,
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			h.change <- func(held map[int32]bool) {
				for _, p := range parts[cmd.Topic] {
					held[p] = true
				}
			}
		}), kgo.OnPartitionsRevoked(gone), kgo.OnPartitionsLost(gone))
	h.client = client
	return h, err
}

func (h *holder) partitions() []int32 {
	list := []int32{}
	for p := range h.held {
		list = append(list, p)
	}
	return list
}

func share(ctx context.Context, cmd *command) (any, error) {
	first, err := join(cmd)
	if err != nil {
		return nil, err
	}
	defer first.client.Close()
	second, err := join(cmd)
	if err != nil {
		return nil, err
	}
	defer second.client.Close()
	next := func() error {
		select {
		case apply := <-first.change:
			apply(first.held)
		case apply := <-second.change:
			apply(second.held)
		case <-ctx.Done():
			return fmt.Errorf("held %v and %v: %w", first.partitions(), second.partitions(), ctx.Err())
		}
		return nil
	}
	together := func() bool {
		for p := range first.held {
			if second.held[p] {
				return false
			}
		}
		return len(first.held) > 0 && len(second.held) > 0 && len(first.held)+len(second.held) == int(cmd.Partitions)
	}
	for !together() {
		if err := next(); err != nil {
			return nil, err
		}
	}
	one, two := first.partitions(), second.partitions()
	if err := first.client.LeaveGroupContext(ctx); err != nil {
		return nil, err
	}
	for len(second.held) != int(cmd.Partitions) {
		if err := next(); err != nil {
			return nil, err
		}
	}
	return [][]int32{one, two, second.partitions()}, nil
}

// ---- share groups

type delivered struct {
	Value string `json:"value"`
	Times int32  `json:"times"`
}

// Accepts cmd.Total records as a member of a share group. Of each ten it releases one when it comes for the first time,
// and rejects another.
func shareGroup(ctx context.Context, cmd *command) (any, error) {
	client, err := connect(cmd, kgo.ShareGroup(cmd.Group), kgo.ConsumeTopics(cmd.Topic))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	events := []delivered{}
	for accepted := 0; accepted < cmd.Total; {
		fetches, err := poll(ctx, client, 50)
		if err != nil {
			return nil, fmt.Errorf("accepted %d of %d: %w", accepted, cmd.Total, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			events = append(events, delivered{string(r.Value), r.DeliveryCount()})
			switch {
			case r.Offset%10 == 3 && r.DeliveryCount() == 1:
				r.Ack(kgo.AckRelease)
			case r.Offset%10 == 7:
				r.Ack(kgo.AckReject)
			default:
				r.Ack(kgo.AckAccept)
				accepted++
			}
		})
	}
	return events, client.FlushAcks(ctx)
}

// ---- internal topics

type group struct {
	Positions map[string]int64 `json:"positions"`
	Members   []string         `json:"members"`
}

// offsetsTopic reads what __consumer_offsets says of a group until it has as many positions as asked for, and a member.
func offsetsTopic(ctx context.Context, cmd *command) (any, error) {
	client, err := connect(cmd, kgo.ConsumeTopics("__consumer_offsets"))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	found := group{Positions: map[string]int64{}}
	for len(found.Positions) < cmd.Total || len(found.Members) == 0 {
		fetches, err := poll(ctx, client, 500)
		if err != nil {
			return nil, fmt.Errorf("found %v: %w", found, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			key, position := kmsg.NewOffsetCommitKey(), kmsg.NewOffsetCommitValue()
			about, metadata := kmsg.NewGroupMetadataKey(), kmsg.NewGroupMetadataValue()
			switch {
			case r.Key[1] < 2 && key.ReadFrom(r.Key) == nil && key.Group == cmd.Group && position.ReadFrom(r.Value) == nil:
				found.Positions[fmt.Sprintf("%s-%d", key.Topic, key.Partition)] = position.Offset
			case r.Key[1] == 2 && about.ReadFrom(r.Key) == nil && about.Group == cmd.Group && metadata.ReadFrom(r.Value) == nil:
				found.Members = nil
				for _, member := range metadata.Members {
					found.Members = append(found.Members, member.MemberID)
				}
			}
		})
	}
	return found, nil
}

// ---- administration

func administer(ctx context.Context, cmd *command, admin *kadm.Client) (any, error) {
	switch cmd.Op {
	case "create_topic":
		config := map[string]*string{}
		for name, value := range cmd.Config {
			config[name] = &value
		}
		_, err := admin.CreateTopic(ctx, cmd.Partitions, 1, config, cmd.Topic)
		return nil, err
	case "delete_topic":
		_, err := admin.DeleteTopic(ctx, cmd.Topic)
		return nil, err
	case "topics":
		topics, err := admin.ListTopics(ctx)
		return topics.Names(), err
	case "version_guess":
		versions, err := admin.ApiVersions(ctx)
		if err != nil {
			return nil, err
		}
		guesses := []string{}
		versions.Each(func(one kadm.BrokerApiVersions) { guesses = append(guesses, one.VersionGuess()) })
		return guesses, nil
	case "partition_count":
		topics, err := admin.ListTopics(ctx, cmd.Topic)
		if err != nil {
			return nil, err
		}
		return len(topics[cmd.Topic].Partitions), topics[cmd.Topic].Err
	case "config":
		found, err := admin.DescribeTopicConfigs(ctx, cmd.Topic)
		if err != nil {
			return nil, err
		}
		resource, err := found.On(cmd.Topic, nil)
		if err != nil {
			return nil, err
		}
		values := map[string]*string{}
		for _, entry := range resource.Configs {
			values[entry.Key] = entry.Value
		}
		return values, resource.Err
	case "set_config":
		var changes []kadm.AlterConfig
		for name, value := range cmd.Values {
			changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value})
		}
		changed, err := admin.AlterTopicConfigs(ctx, changes, cmd.Topic)
		if err != nil {
			return nil, err
		}
		resource, err := changed.On(cmd.Topic, nil)
		if err != nil {
			return nil, err
		}
		return nil, resource.Err
	case "add_partitions":
		changed, err := admin.UpdatePartitions(ctx, cmd.Total, cmd.Topic)
		if err != nil {
			return nil, err
		}
		return nil, changed.Error()
	case "delete_records":
		offsets := kadm.Offsets{}
		offsets.AddOffset(cmd.Topic, cmd.Partition, cmd.Before, -1)
		done, err := admin.DeleteRecords(ctx, offsets)
		if err != nil {
			return nil, err
		}
		return nil, done.Error()
	case "offset":
		return offset(ctx, cmd, admin)
	case "groups":
		groups, err := admin.ListGroups(ctx)
		return groups.Groups(), err
	case "describe_group":
		described, err := admin.DescribeGroups(ctx, cmd.Group)
		if err != nil {
			return nil, err
		}
		group := described[cmd.Group]
		return []any{group.State, len(group.Members)}, group.Err
	case "committed":
		offsets, err := admin.FetchOffsets(ctx, cmd.Group)
		if err != nil {
			return nil, err
		}
		if found, ok := offsets.Lookup(cmd.Topic, cmd.Partition); ok {
			return found.At, found.Err
		}
		return -1, nil
	case "delete_group":
		_, err := admin.DeleteGroup(ctx, cmd.Group)
		return nil, err
	}
	return nil, fmt.Errorf("unknown op %q", cmd.Op)
}

func offset(ctx context.Context, cmd *command, admin *kadm.Client) (any, error) {
	var listed kadm.ListedOffsets
	var err error
	switch at := cmd.At.(type) {
	case float64:
		listed, err = admin.ListOffsetsAfterMilli(ctx, int64(at), cmd.Topic)
	case string:
		if at == "earliest" {
			listed, err = admin.ListStartOffsets(ctx, cmd.Topic)
		} else {
			listed, err = admin.ListEndOffsets(ctx, cmd.Topic)
		}
	}
	if err != nil {
		return nil, err
	}
	found, ok := listed.Lookup(cmd.Topic, cmd.Partition)
	if !ok {
		return nil, fmt.Errorf("partition %d is not in the answer", cmd.Partition)
	}
	// kadm gives the end offset, without a timestamp, when no record is as late as asked.
	if _, byTime := cmd.At.(float64); byTime && found.Timestamp < 0 {
		return -1, found.Err
	}
	return found.Offset, found.Err
}

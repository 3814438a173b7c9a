// Driver of the kafkajs client tests: reads commands as JSON lines from standard input, prints one JSON line for each.
'use strict';

const readline = require('node:readline');
const {
  Kafka,
  CompressionTypes,
  CompressionCodecs,
  ConfigResourceTypes,
  KafkaJSError,
  KafkaJSAggregateError,
  logLevel,
} = require('kafkajs');

const PATIENCE_MS = 40_000;
const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
};

// kafkajs brings gzip alone; the others are plugged in, as its documentation tells users to.
function installCodecs(zstd) {
  const lz4 = require('lz4-napi');
  const stream = new zstd.Streaming();
  CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy');
  CompressionCodecs[CompressionTypes.LZ4] = () => ({
    compress: async (encoder) => lz4.compressFrame(encoder.buffer),
    decompress: async (buffer) => lz4.decompressFrame(buffer),
  });
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async (encoder) => Buffer.from(stream.compress(encoder.buffer)),
    decompress: async (buffer) => Buffer.from(stream.decompress(buffer)),
  });
}

const bytes = (text) => (text === null ? null : Buffer.from(text, 'base64'));
const text = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString('base64'));

function toMessage(record, partition) {
  const headers = {};
  for (const [name, value] of record.headers) {
    headers[name] = name in headers ? [headers[name], bytes(value)].flat() : bytes(value);
  }
  return {
    key: bytes(record.key),
    value: bytes(record.value),
    headers,
    partition,
    timestamp: record.timestamp === null ? undefined : String(record.timestamp),
  };
}

function fromMessage(partition, message) {
  const headers = [];
  for (const [name, value] of Object.entries(message.headers ?? {})) {
    for (const one of Array.isArray(value) ? value : [value]) headers.push([name, text(one)]);
  }
  return {
    partition,
    offset: Number(message.offset),
    timestamp: Number(message.timestamp),
    key: text(message.key),
    value: text(message.value),
    headers,
  };
}

// Resolves when done() says so after a call of the returned check; rejects when patience ends or stop(error) is called.
function waiter(done, describe) {
  let check;
  let stop;
  const promise = new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`gave up: ${describe()}`)), PATIENCE_MS);
    check = () => {
      if (done()) {
        clearTimeout(timer);
        resolve();
      }
    };
    stop = (error) => {
      clearTimeout(timer);
      reject(error);
    };
  });
  return { promise, check, stop };
}

const MEMBER = { heartbeatInterval: 300, sessionTimeout: 10_000, maxWaitTimeInMs: 100 };

class Operations {
  constructor(command) {
    this.command = command;
    this.kafka = new Kafka({ brokers: [command.bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 6, initialRetryTime: 50 } });
  }

  async sendAll(sender, partition, records) {
    const sent = await sender.send({
      topic: this.command.topic,
      acks: -1,
      compression: CODECS[this.command.codec ?? 'none'],
      messages: records.map((record) => toMessage(record, partition)),
    });
    const base = Number(sent[0].baseOffset);
    return records.map((_, index) => base + index);
  }

  async produce() {
    const { partition, records, idempotent } = this.command;
    const producer = this.kafka.producer({ idempotent, ...(idempotent ? { maxInFlightRequests: 1 } : {}) });
    await producer.connect();
    try {
      return await this.sendAll(producer, partition, records);
    } finally {
      await producer.disconnect();
    }
  }

  async transact() {
    const producer = this.kafka.producer({
      transactionalId: this.command.transactional_id,
      idempotent: true,
      maxInFlightRequests: 1,
    });
    await producer.connect();
    try {
      for (const [commit, records] of this.command.rounds) {
        const transaction = await producer.transaction();
        await this.sendAll(transaction, 0, records);
        if (commit) await transaction.commit();
        else await transaction.abort();
      }
    } finally {
      await producer.disconnect();
    }
    return null;
  }

  // kafkajs has no assignment by hand: a group of its own and seek stand in for it.
  async consume() {
    const { topic, counts, starts, isolation } = this.command;
    const left = new Map(Object.entries(counts).map(([partition, count]) => [Number(partition), count]));
    const got = [];
    const consumer = this.kafka.consumer({
      groupId: `kafkajs-${process.pid}-${process.hrtime.bigint()}`,
      readUncommitted: isolation !== 'read_committed',
      ...MEMBER,
    });
    const missing = () => [...left.values()].reduce((sum, count) => sum + count, 0);
    const wait = waiter(() => missing() === 0, () => `still missing ${missing()} after ${got.length} records`);
    consumer.on(consumer.events.CRASH, (event) => wait.stop(event.payload.error));
    await consumer.connect();
    try {
      await consumer.subscribe({ topic, fromBeginning: true });
      await consumer.run({
        autoCommit: false,
        eachBatch: async ({ batch, resolveOffset }) => {
          for (const message of batch.messages) {
            if ((left.get(batch.partition) ?? 0) > 0) {
              left.set(batch.partition, left.get(batch.partition) - 1);
              got.push(fromMessage(batch.partition, message));
            }
            resolveOffset(message.offset);
          }
          wait.check();
        },
      });
      for (const [partition, offset] of Object.entries(starts)) {
        consumer.seek({ topic, partition: Number(partition), offset: String(offset) });
      }
      wait.check();
      await wait.promise;
    } finally {
      await consumer.disconnect();
    }
    return got;
  }

  async consume_group() {
    const { topic, group, count } = this.command;
    const got = [];
    const positions = new Map();
    const consumer = this.kafka.consumer({ groupId: group, ...MEMBER });
    const wait = waiter(() => got.length >= count, () => `only ${got.length} of ${count} records`);
    consumer.on(consumer.events.CRASH, (event) => wait.stop(event.payload.error));
    await consumer.connect();
    try {
      await consumer.subscribe({ topic, fromBeginning: true });
      await consumer.run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          if (got.length < count) {
            got.push(fromMessage(partition, message));
            positions.set(partition, String(Number(message.offset) + 1));
          }
          wait.check();
        },
      });
      wait.check();
      await wait.promise;
      await consumer.commitOffsets([...positions].map(([partition, offset]) => ({ topic, partition, offset })));
    } finally {
      await consumer.disconnect();
    }
    return got;
  }

  async share() {
    const { topic, group, partitions } = this.command;
    const members = [0, 1].map(() => ({ consumer: this.kafka.consumer({ groupId: group, ...MEMBER }), held: [] }));
    const [first, second] = members;
    const together = waiter(
      () =>
        first.held.length > 0 &&
        second.held.length > 0 &&
        first.held.length + second.held.length === partitions &&
        new Set([...first.held, ...second.held]).size === partitions,
      () => `held ${first.held} and ${second.held}`,
    );
    let alone = null;
    for (const member of members) {
      member.consumer.on(member.consumer.events.GROUP_JOIN, (event) => {
        member.held = event.payload.memberAssignment[topic] ?? [];
        together.check();
        if (alone !== null) alone.check();
      });
      await member.consumer.connect();
      await member.consumer.subscribe({ topic, fromBeginning: true });
    }
    try {
      await Promise.all(members.map((member) => member.consumer.run({ eachMessage: async () => {} })));
      await together.promise;
      const shares = [first.held, second.held];
      alone = waiter(() => second.held.length === partitions, () => `the remaining member has ${second.held}`);
      await first.consumer.disconnect();
      await alone.promise;
      return [...shares, second.held];
    } finally {
      await Promise.all(members.map((member) => member.consumer.disconnect()));
    }
  }

  async administer() {
    const admin = this.kafka.admin();
    await admin.connect();
    try {
      return await this[`admin_${this.command.op}`](admin, this.command);
    } finally {
      await admin.disconnect();
    }
  }

  async admin_create_topic(admin, { topic, partitions, config }) {
    const configEntries = Object.entries(config).map(([name, value]) => ({ name, value }));
    const created = await admin.createTopics({
      topics: [{ topic, numPartitions: partitions, replicationFactor: 1, configEntries }],
    });
    if (!created) throw Object.assign(new Error(`${topic} exists`), { code: 36 }); // kafkajs tells this by false
    return null;
  }

  async admin_delete_topic(admin, { topic }) {
    await admin.deleteTopics({ topics: [topic] });
    return null;
  }

  async admin_topics(admin) {
    return admin.listTopics();
  }

  async admin_partition_count(admin, { topic }) {
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] });
    return topics[0].partitions.length;
  }

  async admin_config(admin, { topic }) {
    const answer = await admin.describeConfigs({
      includeSynonyms: false,
      resources: [{ type: ConfigResourceTypes.TOPIC, name: topic }],
    });
    return Object.fromEntries(answer.resources[0].configEntries.map((e) => [e.configName, e.configValue]));
  }

  async admin_set_config(admin, { topic, values }) {
    const configEntries = Object.entries(values).map(([name, value]) => ({ name, value }));
    await admin.alterConfigs({
      validateOnly: false,
      resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries }],
    });
    return null;
  }

  async admin_add_partitions(admin, { topic, total }) {
    await admin.createPartitions({ topicPartitions: [{ topic, count: total }] });
    return null;
  }

  async admin_delete_records(admin, { topic, partition, before }) {
    // It finds the leader only in metadata that an earlier call of the same admin client has loaded.
    await admin.fetchTopicOffsets(topic);
    await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(before) }] });
    return null;
  }

  async admin_offset(admin, { topic, partition, at }) {
    if (typeof at === 'number') {
      // kafkajs puts the end offset in the place of "none", so ask for the end as well.
      const found = (await admin.fetchTopicOffsetsByTimestamp(topic, at)).find((one) => one.partition === partition);
      const end = (await admin.fetchTopicOffsets(topic)).find((one) => one.partition === partition);
      return found.offset === end.high ? -1 : Number(found.offset);
    }
    const found = (await admin.fetchTopicOffsets(topic)).find((one) => one.partition === partition);
    return Number(at === 'earliest' ? found.low : found.high);
  }

  async admin_groups(admin) {
    return (await admin.listGroups()).groups.map((group) => group.groupId);
  }

  async admin_describe_group(admin, { group }) {
    const [described] = (await admin.describeGroups([group])).groups;
    return [described.state, described.members.length];
  }

  async admin_committed(admin, { group, topic, partition }) {
    const [answer] = await admin.fetchOffsets({ groupId: group, topics: [topic] });
    return Number(answer.partitions.find((one) => one.partition === partition)?.offset ?? -1);
  }

  async admin_delete_group(admin, { group }) {
    await admin.deleteGroups([group]);
    return null;
  }
}

// The protocol's code, which kafkajs may have wrapped several times over.
function codeOf(error) {
  if (error instanceof KafkaJSAggregateError) return codeOf(error.errors[0]);
  if (Array.isArray(error.groups)) return codeOf(error.groups[0].error ?? error.groups[0]);
  if (Array.isArray(error.partitions)) return codeOf(error.partitions[0].error ?? error.partitions[0]);
  for (let one = error; one; one = one.cause ?? (one instanceof KafkaJSError ? one.originalError : null)) {
    if (Number.isInteger(one.code)) return one.code;
    if (Number.isInteger(one.errorCode)) return one.errorCode;
  }
  return -1;
}

async function main() {
  await new Promise((resolve) => {
    require('zstd-codec').ZstdCodec.run((zstd) => {
      installCodecs(zstd);
      resolve();
    });
  });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let answer;
    try {
      const command = JSON.parse(line);
      const operations = new Operations(command);
      const clients = ['produce', 'consume', 'consume_group', 'share', 'transact'];
      const result = clients.includes(command.op) ? await operations[command.op]() : await operations.administer();
      answer = { result };
    } catch (error) {
      answer = { error: codeOf(error), message: String(error.stack ?? error) };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
}

main();

// Driver of the @platformatic/kafka client tests: reads commands as JSON lines from standard input, prints one JSON line
// for each.
import { randomUUID } from 'node:crypto';
import { createInterface } from 'node:readline';
import { inspect } from 'node:util';
import { Admin, Consumer, ConfigResourceTypes, Producer } from '@platformatic/kafka';

const PATIENCE_MS = 40_000;
const MEMBER = { sessionTimeout: 10_000, heartbeatInterval: 300, rebalanceTimeout: 10_000 };

const bytes = (text) => (text === null ? undefined : Buffer.from(text, 'base64'));
const text = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString('base64'));

function toMessage(topic, partition, record) {
  return {
    topic,
    partition,
    key: bytes(record.key),
    value: bytes(record.value),
    // Names are buffers, each one of its own, so that a name may come twice.
    headers: new Map(record.headers.map(([name, value]) => [Buffer.from(name), bytes(value)])),
    timestamp: record.timestamp === null ? undefined : BigInt(record.timestamp),
  };
}

function fromMessage(message) {
  return {
    partition: message.partition,
    offset: Number(message.offset),
    timestamp: Number(message.timestamp),
    key: text(message.key),
    value: text(message.value),
    headers: [...message.headers].map(([name, value]) => [name.toString(), text(value)]),
  };
}

// Calls step with what the stream gives until it says that this was all; fails when patience ends.
async function read(stream, describe, step) {
  let timer;
  const patience = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`gave up: ${describe()}`)), PATIENCE_MS);
  });
  const reading = (async () => {
    for await (const message of stream) if (step(message)) return;
  })();
  try {
    await Promise.race([reading, patience]);
  } finally {
    clearTimeout(timer);
  }
}

class Operations {
  constructor(command) {
    this.command = command;
    this.options = { clientId: 'platformatic', bootstrapBrokers: [command.bootstrap], retries: 20, retryDelay: 100 };
  }

  consumer(groupId, isolation) {
    const isolationLevel = isolation === 'read_committed' ? 1 : 0;
    return new Consumer({ ...this.options, ...MEMBER, groupId, isolationLevel, autocommit: false, maxWaitTime: 100 });
  }

  async produce() {
    const { topic, partition, records, codec, idempotent } = this.command;
    const producer = new Producer({ ...this.options, idempotent, acks: -1, autocreateTopics: false });
    try {
      const messages = records.map((record) => toMessage(topic, partition, record));
      const { offsets } = await producer.send({ messages, compression: codec });
      return records.map((_, index) => Number(offsets[0].offset) + index);
    } finally {
      await producer.close();
    }
  }

  // A consumer of this library is always a member of a group: one of its own stands in for an assignment by hand.
  async consume() {
    const { topic, counts, starts, isolation } = this.command;
    const left = new Map(Object.entries(counts).map(([partition, count]) => [Number(partition), count]));
    const missing = () => [...left.values()].reduce((sum, count) => sum + count, 0);
    const got = [];
    const consumer = this.consumer(`platformatic-${randomUUID()}`, isolation);
    try {
      const begins = (await consumer.listOffsets({ topics: [topic], timestamp: -2n })).get(topic);
      const offsets = [...left.keys()].map((partition) => ({
        topic,
        partition,
        offset: partition in starts ? BigInt(starts[partition]) : begins[partition],
      }));
      const stream = await consumer.consume({ topics: [topic], mode: 'manual', offsets });
      await read(stream, () => `still missing ${missing()} after ${got.length} records`, (message) => {
        if ((left.get(message.partition) ?? 0) > 0) {
          left.set(message.partition, left.get(message.partition) - 1);
          got.push(fromMessage(message));
        }
        return missing() === 0;
      });
    } finally {
      await consumer.close(true);
    }
    return got;
  }

  async consume_group() {
    const { topic, group, count } = this.command;
    const got = [];
    const positions = new Map();
    const consumer = this.consumer(group);
    try {
      const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest' });
      await read(stream, () => `only ${got.length} of ${count} records`, (message) => {
        if (got.length < count) {
          got.push(fromMessage(message));
          positions.set(message.partition, message.offset + 1n);
        }
        return got.length >= count;
      });
      const offsets = [...positions].map(([partition, offset]) => ({ topic, partition, offset, leaderEpoch: -1 }));
      await consumer.commit({ offsets });
    } finally {
      await consumer.close(true);
    }
    return got;
  }

  async share() {
    const { topic, group, partitions } = this.command;
    const members = [];
    const held = (member) => member.assignments?.find((one) => one.topic === topic)?.partitions ?? [];
    const when = async (done, describe) => {
      const end = Date.now() + PATIENCE_MS;
      while (!done()) {
        if (Date.now() > end) throw new Error(`gave up: ${describe()}`);
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
    };
    try {
      for (let number = 0; number < 2; number += 1) {
        const member = this.consumer(group);
        members.push(member);
        const stream = await member.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest' });
        stream.on('data', () => {});
        stream.on('error', () => {});
      }
      const [first, second] = members;
      const together = () => {
        const all = [...held(first), ...held(second)];
        return held(first).length && held(second).length && all.length === partitions && new Set(all).size === partitions;
      };
      await when(together, () => `held ${held(first)} and ${held(second)}`);
      const shares = [held(first), held(second)];
      await first.close(true);
      await when(() => held(second).length === partitions, () => `the remaining member has ${held(second)}`);
      return [...shares, held(second)];
    } finally {
      await Promise.all(members.map((member) => member.close(true)));
    }
  }

  async administer() {
    const admin = new Admin({ ...this.options, retries: 3 });
    try {
      return await this[`admin_${this.command.op}`](admin, this.command);
    } finally {
      await admin.close();
    }
  }

  async admin_create_topic(admin, { topic, partitions, config }) {
    const configs = Object.entries(config).map(([name, value]) => ({ name, value }));
    await admin.createTopics({ topics: [topic], partitions, replicas: 1, configs });
    return null;
  }

  async admin_delete_topic(admin, { topic }) {
    await admin.deleteTopics({ topics: [topic] });
    return null;
  }

  async admin_topics(admin) {
    return admin.listTopics({});
  }

  async admin_partition_count(admin, { topic }) {
    const { topics } = await admin.metadata({ topics: [topic], forceUpdate: true });
    return topics.get(topic).partitionsCount;
  }

  async admin_config(admin, { topic }) {
    const resources = [{ resourceType: ConfigResourceTypes.TOPIC, resourceName: topic, configurationKeys: null }];
    const [{ configs }] = await admin.describeConfigs({ resources });
    return Object.fromEntries(configs.map((one) => [one.name, one.value]));
  }

  async admin_set_config(admin, { topic, values }) {
    const configs = Object.entries(values).map(([name, value]) => ({ name, configOperation: 0, value }));
    const resources = [{ resourceType: ConfigResourceTypes.TOPIC, resourceName: topic, configs }];
    await admin.incrementalAlterConfigs({ resources });
    return null;
  }

  async admin_add_partitions(admin, { topic, total }) {
    await admin.createPartitions({ topics: [{ name: topic, count: total, assignments: null }] });
    return null;
  }

  async admin_delete_records(admin, { topic, partition, before }) {
    await admin.deleteRecords({ topics: [{ name: topic, partitions: [{ partition, offset: BigInt(before) }] }] });
    return null;
  }

  async admin_offset(admin, { topic, partition, at }) {
    const timestamp = at === 'earliest' ? -2n : at === 'latest' ? -1n : BigInt(at);
    const topics = [{ name: topic, partitions: [{ partitionIndex: partition, timestamp }] }];
    const [found] = await admin.listOffsets({ topics });
    return Number(found.partitions[0].offset);
  }

  async admin_groups(admin) {
    return [...(await admin.listGroups({})).keys()];
  }

  async admin_describe_group(admin, { group }) {
    const described = (await admin.describeGroups({ groups: [group] })).get(group);
    // Its own names are in capitals: PREPARING_REBALANCE.
    const state = described.state.toLowerCase().replace(/(?:^|_)./g, (start) => start.at(-1).toUpperCase());
    return [state, described.members.size];
  }

  async admin_committed(admin, { group, topic, partition }) {
    const groups = [{ groupId: group, topics: [{ name: topic, partitionIndexes: [partition] }] }];
    const [answer] = await admin.listConsumerGroupOffsets({ groups });
    return Number(answer.topics[0].partitions[0].committedOffset);
  }

  async admin_delete_group(admin, { group }) {
    await admin.deleteGroups({ groups: [group] });
    return null;
  }
}

// The protocol's code, which may be wrapped several times over.
function codeOf(error) {
  if (Number.isInteger(error?.apiCode)) return error.apiCode;
  if (error?.message?.startsWith('Unknown topic ')) return 3; // what an answer with this code becomes
  for (const inner of [...(error?.errors ?? []), error?.cause]) {
    const code = inner ? codeOf(inner) : -1;
    if (code !== -1) return code;
  }
  return -1;
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    const command = JSON.parse(line);
    const operations = new Operations(command);
    const clients = ['produce', 'consume', 'consume_group', 'share'];
    answer = { result: clients.includes(command.op) ? await operations[command.op]() : await operations.administer() };
  } catch (error) {
    answer = { error: codeOf(error), message: inspect(error, { depth: 4 }) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}

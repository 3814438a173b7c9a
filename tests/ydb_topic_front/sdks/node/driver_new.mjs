// Driver of the tests of @ydbjs/core, @ydbjs/api and @ydbjs/query, the newer packages. Discovery, credentials, channels and
// transactions are theirs; they have no topic client, so streams and codecs are handled here as a program on top of them
// would.
import { randomUUID } from 'node:crypto';
import fs from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';
import zlib from 'node:zlib';
import { Driver } from '@ydbjs/core';
import { StaticCredentialsProvider } from '@ydbjs/auth/static';
import { DescribeConsumerResultSchema, DescribeTopicResultSchema, TopicServiceDefinition } from '@ydbjs/api/topic';
import { query } from '@ydbjs/query';
import { anyUnpack } from '@bufbuild/protobuf/wkt';
import lines from './lines.js';

const { PATIENCE_MS, bytes, many, place, serve, text } = lines;
const SUCCESS = 400000;
const ENCODE = { 1: (data) => data, 2: (data) => zlib.gzipSync(data) };
const DECODE = { 1: (data) => data, 2: (data) => zlib.gunzipSync(data) };
/** How long a transaction may take, with all its repetitions, before its outcome is looked up. */
const STEP_MS = 5_000;
const connections = new Map();

async function connect(command) {
  const { url, key } = place(command);
  let found = connections.get(key);
  if (!found) {
    const secureOptions = command.ca ? { ca: fs.readFileSync(command.ca) } : undefined;
    const options = { secureOptions };
    if (command.user) {
      const credentials = { username: command.user, password: command.password };
      options.credentialsProvider = new StaticCredentialsProvider(credentials, url, secureOptions);
    }
    const driver = new Driver(`${url}${command.database}`, options);
    await driver.ready(AbortSignal.timeout(20_000));
    found = { topics: driver.createClient(TopicServiceDefinition), queries: query(driver) };
    connections.set(key, found);
  }
  return found;
}

async function client(command) {
  return (await connect(command)).topics;
}

/** Requests pushed one by one, for a call that takes an async iterable. */
class Requests {
  #waiting = [];
  #wake = () => {};
  #ended = false;

  push(kind, value) {
    this.#waiting.push({ clientMessage: { case: kind, value } });
    this.#wake();
  }

  end() {
    this.#ended = true;
    this.#wake();
  }

  async *[Symbol.asyncIterator]() {
    for (;;) {
      while (this.#waiting.length) yield this.#waiting.shift();
      if (this.#ended) return;
      await new Promise((resolve) => (this.#wake = resolve));
    }
  }
}

function checked(answer) {
  const { status, issues } = answer.operation ?? answer;
  if (status !== SUCCESS) throw new Error(`${status} ${issues.map((issue) => issue.message).join('; ')}`);
  return answer;
}

/** The next message of a stream, which has to be of the kind. */
async function next(answers, kind) {
  const { value, done } = await answers.next();
  if (done) throw new Error(`the stream ended before ${kind}`);
  const { serverMessage } = checked(value);
  if (serverMessage.case !== kind) throw new Error(`got ${serverMessage.case} instead of ${kind}`);
  return serverMessage.value;
}

async function send(command, messages, atOnce) {
  const requests = new Requests();
  const answers = (await client(command)).streamWrite(requests)[Symbol.asyncIterator]();
  const byPartition = command.partition !== undefined && command.partition !== null;
  requests.push('initRequest', {
    path: command.path,
    producerId: command.producer,
    partitioning: byPartition ? { case: 'partitionId', value: BigInt(command.partition) } : { case: undefined },
  });
  await next(answers, 'initResponse');
  const acks = [];
  for (let i = 0; i < messages.length; i += atOnce) {
    requests.push('writeRequest', {
      codec: command.codec,
      tx: command.tx,
      messages: messages.slice(i, i + atOnce).map(({ seq, data, metadata }) => ({
        seqNo: BigInt(seq),
        data: ENCODE[command.codec](bytes(data)),
        metadataItems: Object.entries(metadata).map(([name, value]) => ({ key: name, value: bytes(value) })),
      })),
    });
    for (const ack of (await next(answers, 'writeResponse')).acks) {
      const { case: status, value } = ack.messageWriteStatus;
      acks.push([Number(ack.seqNo), status, status === 'written' ? Number(value.offset) : -1]);
    }
  }
  requests.end();
  return acks;
}

async function receive(command) {
  const requests = new Requests();
  const answers = (await client(command)).streamRead(requests)[Symbol.asyncIterator]();
  requests.push('initRequest', { topicsReadSettings: [{ path: command.path }], consumer: command.consumer });
  await next(answers, 'initResponse');
  requests.push('readRequest', { bytesSize: 1024n * 1024n });
  const partitions = new Map();
  const found = [];
  let uncommitted = 0;
  while (found.length < command.count || uncommitted > 0) {
    const { value: answer, done } = await answers.next();
    if (done) throw new Error(`the stream ended after ${found.length} messages`);
    const { case: kind, value } = checked(answer).serverMessage;
    if (kind === 'startPartitionSessionRequest') {
      const { partitionSessionId, partitionId } = value.partitionSession;
      partitions.set(partitionSessionId, { id: Number(partitionId), next: value.committedOffset });
      requests.push('startPartitionSessionResponse', { partitionSessionId });
    } else if (kind === 'commitOffsetResponse') {
      uncommitted -= value.partitionsCommittedOffsets.length;
    } else if (kind === 'readResponse') {
      requests.push('readRequest', { bytesSize: value.bytesSize });
      for (const { partitionSessionId, batches } of value.partitionData) {
        const partition = partitions.get(partitionSessionId);
        const start = partition.next;
        for (const batch of batches) {
          for (const message of batch.messageData) {
            if (found.length === command.count) break;
            partition.next = message.offset + 1n;
            found.push({
              partition: partition.id,
              offset: Number(message.offset),
              seq: Number(message.seqNo),
              producer: batch.producerId,
              data: text(DECODE[batch.codec](message.data)),
              metadata: Object.fromEntries(message.metadataItems.map((item) => [item.key, text(item.value)])),
            });
          }
        }
        if (command.commit && partition.next > start) {
          const offsets = [{ start, end: partition.next }];
          requests.push('commitOffsetRequest', { commitOffsets: [{ partitionSessionId, offsets }] });
          uncommitted += 1;
        }
      }
    }
  }
  requests.end();
  return found;
}

async function committed({ path, consumer, ...command }) {
  const answer = checked(await (await client(command)).describeConsumer({ path, consumer, includeStats: true }));
  const { partitions } = anyUnpack(answer.operation.result, DescribeConsumerResultSchema);
  return Number(partitions[0].partitionConsumerStats.committedOffset);
}

/** Copies three messages at most, from a position on, in one transaction. */
async function copySome(command, start) {
  const end = Math.min(start + 3, command.count);
  const messages = await receive({ ...command, count: end - start, commit: false });
  const { topics, queries } = await connect(command);
  await queries.begin({ idempotent: true, signal: AbortSignal.timeout(STEP_MS) }, async ({ sessionId, transactionId }) => {
    const tx = { id: transactionId, session: sessionId };
    const partitionOffsets = [{ start: BigInt(messages[0].offset), end: BigInt(messages.at(-1).offset + 1) }];
    const moved = [{ path: command.path, partitions: [{ partitionId: 0n, partitionOffsets }] }];
    checked(await topics.updateOffsetsInTransaction({ tx, topics: moved, consumer: command.consumer }));
    const sent = messages.map(({ data }, i) => ({ seq: i + 1, data, metadata: {} }));
    const to = { ...command, path: command.target, producer: randomUUID(), codec: 1, tx };
    await send(to, sent, sent.length);
  });
}

/** Copies a topic of one partition in transactions. What a node's death breaks is done again, as a user would. */
async function copy(command) {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    try {
      const start = await committed(command);
      if (start >= command.count) return;
      await copySome(command, start);
    } catch (error) {
      if (Date.now() > end) throw error;
      await pause(50);
    }
  }
}

serve({
  copy,
  create: async (command) => {
    checked(
      await (await client(command)).createTopic({
        path: command.path,
        partitioningSettings: { minActivePartitions: BigInt(command.partitions) },
        supportedCodecs: { codecs: command.codecs },
        consumers: command.consumers.map((name) => ({ name })),
      }),
    );
  },
  add_consumer: async (command) => {
    const request = { path: command.path, addConsumers: [{ name: command.consumer }] };
    checked(await (await client(command)).alterTopic(request));
  },
  describe: async (command) => {
    const answer = checked(await (await client(command)).describeTopic({ path: command.path }));
    const topic = anyUnpack(answer.operation.result, DescribeTopicResultSchema);
    return {
      partitions: topic.partitions.map((partition) => Number(partition.partitionId)),
      consumers: topic.consumers.map((consumer) => consumer.name),
      codecs: topic.supportedCodecs?.codecs ?? [],
    };
  },
  drop: async (command) => {
    checked(await (await client(command)).dropTopic({ path: command.path }));
  },
  write: (command) => send(command, command.messages, command.messages.length),
  write_many: (command) => send(command, many(command), 10),
  read: receive,
});

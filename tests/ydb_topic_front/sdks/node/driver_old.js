// Driver of the tests of ydb-sdk, the older of YDB's packages for Node.js. It leaves codecs to its user, and numbers
// messages by itself unless it is told not to ask for the last number; after a reconnection in both cases.
'use strict';

const fs = require('node:fs');
const zlib = require('node:zlib');
const { AnonymousAuthService, Driver, StaticCredentialsAuthService, Ydb } = require('ydb-sdk');
const { bytes, many, place, serve, text } = require('./lines.js');

const ENCODE = { 1: (data) => data, 2: (data) => zlib.gzipSync(data) };
const DECODE = { 1: (data) => data, 2: (data) => zlib.gunzipSync(data) };
const SILENT = Object.fromEntries(['fatal', 'error', 'warn', 'info', 'debug', 'trace'].map((level) => [level, () => {}]));
const drivers = new Map();

async function topics(command) {
  const { url, key } = place(command);
  let driver = drivers.get(key);
  if (!driver) {
    const sslCredentials = command.ca ? { rootCertificates: fs.readFileSync(command.ca) } : undefined;
    const authService = command.user
      ? new StaticCredentialsAuthService(command.user, command.password, url, SILENT, { sslCredentials })
      : new AnonymousAuthService();
    driver = new Driver({ endpoint: url, database: command.database, authService, sslCredentials, logger: SILENT });
    if (!(await driver.ready(20_000))) throw new Error('the driver did not get ready');
    drivers.set(key, driver);
  }
  return driver.topic;
}

async function send(command, messages, atOnce) {
  const writer = await (await topics(command)).createWriter({
    path: command.path,
    producerId: command.producer,
    messageGroupId: command.producer,
  });
  const acks = [];
  for (let i = 0; i < messages.length; i += atOnce) {
    const sent = messages.slice(i, i + atOnce).map(({ data, metadata }) =>
      writer.send({
        codec: command.codec,
        messages: [
          {
            data: ENCODE[command.codec](bytes(data)),
            createdAt: { seconds: Math.floor(Date.now() / 1000), nanos: 0 },
            metadataItems: Object.entries(metadata).map(([name, value]) => ({ key: name, value: bytes(value) })),
          },
        ],
      }),
    );
    for (const { seqNo, written } of await Promise.all(sent)) {
      acks.push([Number(seqNo), written ? 'written' : 'skipped', written ? Number(written.offset) : -1]);
    }
  }
  writer.close(true);
  return acks;
}

/** Until the server has confirmed the offset: commits of this package do not wait for that. */
function confirmed(reader, offset) {
  const { events } = reader.innerReadStream;
  return new Promise((resolve) => {
    const told = ({ partitionsCommittedOffsets }) => {
      if (!partitionsCommittedOffsets.some(({ committedOffset }) => Number(committedOffset) > offset)) return;
      events.off('commitOffsetResponse', told);
      resolve();
    };
    events.on('commitOffsetResponse', told);
  });
}

serve({
  create: async (command) => {
    await (await topics(command)).createTopic({
      path: command.path,
      partitioningSettings: { minActivePartitions: command.partitions },
      supportedCodecs: { codecs: command.codecs },
      consumers: command.consumers.map((name) => ({ name })),
    });
  },
  add_consumer: async (command) => {
    await (await topics(command)).alterTopic({ path: command.path, addConsumers: [{ name: command.consumer }] });
  },
  describe: async (command) => {
    const { operation } = await (await topics(command)).describeTopic({ path: command.path });
    const topic = Ydb.Topic.DescribeTopicResult.decode(operation.result.value);
    return {
      partitions: topic.partitions.map((partition) => Number(partition.partitionId)),
      consumers: topic.consumers.map((consumer) => consumer.name),
      codecs: topic.supportedCodecs.codecs,
    };
  },
  drop: async (command) => {
    await (await topics(command)).dropTopic({ path: command.path });
  },
  write: (command) => send(command, command.messages, command.messages.length),
  write_many: (command) => send(command, many(command), 10),
  read: async (command) => {
    const reader = await (await topics(command)).createReader({
      receiveBufferSizeInBytes: 1024 * 1024,
      topicsReadSettings: [{ path: command.path }],
      consumer: command.consumer,
    });
    const found = [];
    let committed;
    for await (const message of reader.messages) {
      found.push({
        partition: null, // not told by this package
        offset: Number(message.offset),
        seq: Number(message.seqNo),
        producer: message.producerId,
        data: text(DECODE[message.codec](message.data)),
        metadata: Object.fromEntries(message.metadataItems.map((item) => [item.key, text(item.value)])),
      });
      if (command.commit) {
        committed = confirmed(reader, Number(message.offset));
        await message.commit();
      }
      if (found.length === command.count) break;
    }
    await committed;
    reader.close(true);
    return found;
  },
});

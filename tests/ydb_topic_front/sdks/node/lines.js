// Commands as JSON lines from standard input, one JSON line printed for each.
'use strict';

const readline = require('node:readline');

const PATIENCE_MS = 40_000;

/** The promise, or an error when it takes too long. */
function patient(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} took longer than ${PATIENCE_MS} ms`)), PATIENCE_MS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

// The SDKs look for other nodes in the background, and leave it to their user that none may be there.
process.on('unhandledRejection', (error) => console.error(error));

/** Calls handlers[op](command) for each line, one at a time. */
async function serve(handlers) {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    let answer;
    try {
      const result = await patient(handlers[command.op](command), command.op);
      answer = { result: result === undefined ? null : result };
    } catch (error) {
      answer = { error: error.constructor.name, message: String(error.message) };
    }
    process.stdout.write(JSON.stringify(answer) + '\n');
  }
  process.exit(0);
}

const bytes = (text) => Buffer.from(text, 'base64');
const text = (data) => Buffer.from(data).toString('base64');

/** The messages of write_many. */
function many({ first, count, prefix }) {
  return Array.from({ length: count }, (_, i) => ({ seq: first + i, data: text(`${prefix}${i}`), metadata: {} }));
}

/** The command's url and a key of its connection. */
function place({ endpoint, database, user, password, ca }) {
  const url = `${ca ? 'grpcs' : 'grpc'}://${endpoint}`;
  return { url, key: [url, database, user, password, ca].join('|') };
}

module.exports = { PATIENCE_MS, bytes, many, place, serve, text };

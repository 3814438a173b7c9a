// The JSON interface. What fails is an Error whose message is the node's own sentence.

export class Failure extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const part = encodeURIComponent;

export function query(values) {
  const told = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return told.length ? "?" + told.map(([name, value]) => `${name}=${part(value)}`).join("&") : "";
}

const MOST_MS = 10000; // a node that hangs is as good as one that is gone

// When the node answered last, and whether it has answered nothing since.
export const contact = { at: Date.now(), lost: false };

// A page that was opened with user:pass@ in its address has these in relative addresses, which fetch() refuses.
async function asked(path, options, most) {
  const late = new AbortController(), timer = most && setTimeout(() => late.abort(), most);
  try {
    const response = await fetch(new URL(path, location.origin), { cache: "no-store", ...options, signal: options.signal ? AbortSignal.any([options.signal, late.signal]) : late.signal });
    if (response.status === 502 || response.status === 504) throw new Failure("no answer from behind the proxy", 0);
    contact.at = Date.now();
    contact.lost = false;
    return await checked(response);
  } catch (error) {
    if (error.status || options.signal?.aborted) throw error;
    contact.lost = true;
    throw new Failure("the node does not answer", 0);
  } finally { clearTimeout(timer); }
}

// Who asks, as the node knows it; null before it has said so.
export let me = null;
export async function ask() { me = await get("/api/me"); }
// What an empty list says: who may not see all there is cannot tell that there is nothing.
export const none = (what) => (me?.restricted ? `No ${what} that ${me.user ?? "somebody without a login"} may see.` : `No ${what} yet.`);

async function checked(response) {
  if (response.ok) return response;
  let sentence = response.statusText;
  try {
    sentence = (await response.json()).error || sentence;
  } catch { /* no JSON: a proxy's answer */ }
  throw new Failure(sentence, response.status);
}

export async function get(path, signal) {
  return (await asked(path, { signal }, MOST_MS)).json();
}

// Whether the node does it; the answer itself is not wanted.
export async function check(path) { await (await asked(path, {}, MOST_MS)).arrayBuffer(); }

export async function send(method, path, body) {
  const text = typeof body === "string" ? body : JSON.stringify(body ?? {});
  return (await asked(path, { method, body: text, headers: { "Content-Type": "application/json" } })).json();
}

// Lines of JSON as they come. `each` is called with every one; the promise ends with the stream.
export async function lines(path, each, signal) {
  const response = await asked(path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const whole = (rest + value).split("\n");
    rest = whole.pop();
    for (const line of whole) if (line) each(JSON.parse(line));
  }
  if (rest.trim()) each(JSON.parse(rest));
}

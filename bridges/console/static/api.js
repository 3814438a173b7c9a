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

async function checked(response) {
  if (response.ok) return response;
  let sentence = response.statusText;
  try {
    sentence = (await response.json()).error || sentence;
  } catch { /* no JSON: a proxy's answer */ }
  throw new Failure(sentence, response.status);
}

export async function get(path, signal) {
  return (await checked(await fetch(path, { cache: "no-store", signal }))).json();
}

export async function send(method, path, body) {
  const text = typeof body === "string" ? body : JSON.stringify(body ?? {});
  return (await checked(await fetch(path, { method, body: text, headers: { "Content-Type": "application/json" } }))).json();
}

// Lines of JSON as they come. `each` is called with every one; the promise ends with the stream.
export async function lines(path, each, signal) {
  const response = await checked(await fetch(path, { cache: "no-store", signal }));
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

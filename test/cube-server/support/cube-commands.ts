/** Sends Cube's commands as its agent does: curl with a JSON body and its default content type. */
import assert from 'node:assert/strict';

export interface CubeCommandReply {
  readonly status: number;
  readonly text: string;
  readonly reason: string;
}

export async function sendCubeCommand(address: string, body: unknown): Promise<CubeCommandReply> {
  const response = await fetch(`http://${address}/ControlService/cmd`, {
    method: 'POST',
    headers: { 'content-type': 'application/x-www-form-urlencoded' },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
  const reason = decodeURI(response.headers.get('x-hypercube-error') ?? '');
  return { status: response.status, text: await response.text(), reason };
}

/** [cur_version, bg_version, status], with Cube's four-space JSON checked. */
export async function getCubeStatus(address: string): Promise<[string, string, number]> {
  const { status, text } = await sendCubeCommand(address, { cmd: 'status' });
  assert.equal(status, 200);
  const parsed = JSON.parse(text);
  assert.equal(text, JSON.stringify(parsed, null, 4));
  assert.deepEqual(Object.keys(parsed), ['cur_version', 'bg_version', 'status']);
  return [parsed.cur_version, parsed.bg_version, parsed.status];
}

/** The first float of a key's value by seek; undefined: a miss. */
export async function seekFloat(address: string, key: number): Promise<number | undefined> {
  const response = await fetch(`http://${address}/DictService/seek`, {
    method: 'POST',
    body: JSON.stringify({ keys: [key] }),
  });
  assert.equal(response.status, 200);
  const { values } = (await response.json()) as { values: { status: number; value: string }[] };
  if (values[0]?.status !== 0) return undefined;
  return Buffer.from(values[0].value, 'base64').readFloatLE(0);
}

/** What a cube-server says of itself: the control call `status`, for tools that only look. */
import { CONTROL_STATUS, type ControlStatus, readControlStatus } from '../../proto/control.ts';
import { CubeError, ERROR_STATUS, type ErrorCode } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import { BodyReader } from '../rpc/http-body.ts';

const STATUS_BYTES_MAX = 16 << 20;

/**
 * @param address host:port of the control calls
 * @param token for servers that ask for one
 * @throws CubeError UNAVAILABLE or DEADLINE_EXCEEDED without an answer; the server's own code and text
 */
export async function readServerStatus(
  address: string,
  options: { readonly token?: string | undefined; readonly timeoutMs?: number } = {},
): Promise<ControlStatus> {
  const { token, timeoutMs = 5_000 } = options;
  const headers: Record<string, string> = {};
  if (token !== undefined) headers['authorization'] = `Bearer ${token}`;
  const body = new BodyReader({ idleMs: timeoutMs, headers });
  const { status, bytes } = await body.read(`http://${address}${CONTROL_STATUS}`, STATUS_BYTES_MAX);
  const source = `the answer of ${address} to ${CONTROL_STATUS}`;
  const json = JsonReader.parse(new TextDecoder().decode(bytes), source);
  if (status < 400) return readControlStatus(json);
  const code = json.optional('code', (field) => field.string()) ?? '';
  const message = json.optional('error', (field) => field.string()) ?? `HTTP status ${status}`;
  const known = Object.hasOwn(ERROR_STATUS, code) ? (code as ErrorCode) : 'INTERNAL';
  throw new CubeError(known, `${address}: ${message}`);
}

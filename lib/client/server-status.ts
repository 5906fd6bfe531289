/** What a cube-server says of itself: the control call `status`, for tools that only look. */
import { CONTROL_STATUS, type ControlStatus, readControlStatus } from '../../proto/control.ts';
import { CubeError } from '../core/errors.ts';
import { type Credentials, NO_CREDENTIALS } from '../rpc/credentials.ts';
import { callJson } from '../rpc/json-call.ts';

/**
 * @param address host:port of the control calls
 * @throws CubeError UNAVAILABLE or DEADLINE_EXCEEDED without an answer; the server's own code and text
 */
export async function readServerStatus(
  address: string,
  options: { readonly credentials?: Credentials; readonly timeoutMs?: number } = {},
): Promise<ControlStatus> {
  const { credentials = NO_CREDENTIALS, timeoutMs = 5_000 } = options;
  const peer = { address, credentials, name: 'cube-server' };
  try {
    return readControlStatus(await callJson(peer, CONTROL_STATUS, { timeoutMs }));
  } catch (error) {
    const { code, message } = CubeError.from(error);
    if (message.includes(address)) throw error;
    throw new CubeError(code, `${address}: ${message}`);
  }
}

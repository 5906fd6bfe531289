/**
 * Reads the status of a cube-server with the control call `status`, for tools that only inspect.
 * Recognizes servers of PaddlePaddle Cube, which have no control calls.
 */

import { CONTROL_STATUS, type ControlStatus, readControlStatus } from '../../proto/control.ts';
import { CubeError } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import { type Credentials, NO_CREDENTIALS } from '../rpc/credentials.ts';
import { ERROR_CODE_HEADER } from '../rpc/direct-routes.ts';
import { callText, type Peer, readJson, type TextResponse } from '../rpc/json-call.ts';

/** As brpc reports a path that it does not know. */
const UNKNOWN_METHOD = '1002';
const SEEK_PATH = '/DictService/seek';

/** A server of PaddlePaddle Cube (C++). It does not tell which shard it serves. */
export interface OriginalServerStatus {
  /** The version that it answers from; empty: the data folder itself, or nothing. */
  readonly originalVersion: string;
}

export interface ServerStatusOptions {
  readonly credentials?: Credentials;
  readonly timeoutMs?: number;
}

/**
 * @param address host:port of the control calls
 * @throws CubeError UNAVAILABLE or DEADLINE_EXCEEDED without a response; else with the server's own
 *   code. Messages name the address.
 */
export async function readServerStatus(
  address: string,
  options: ServerStatusOptions = {},
): Promise<ControlStatus | OriginalServerStatus> {
  const { credentials = NO_CREDENTIALS, timeoutMs = 5_000 } = options;
  const peer = { address, credentials, role: 'cube-server' };
  const response = await callText(peer, CONTROL_STATUS, { timeoutMs });
  if (isOfBrpc(response)) return readOriginalStatus(peer, timeoutMs);
  return readControlStatus(readJson(peer, CONTROL_STATUS, response, `${address}: `));
}

export function isOriginal(
  status: ControlStatus | OriginalServerStatus,
): status is OriginalServerStatus {
  return 'originalVersion' in status;
}

/** The error of what an original server cannot do. @param todo what to do instead */
export function createOriginalServerError(address: string, todo: string): CubeError {
  return new CubeError(
    'UNSUPPORTED',
    `${address} is a server of PaddlePaddle Cube (C++), which answers seeks only: ${todo}`,
    { details: { server: address } },
  );
}

/** Our servers answer an unknown path with JSON. */
function isOfBrpc({ status, headers, text }: TextResponse): boolean {
  return status === 404 && headers[ERROR_CODE_HEADER] === UNKNOWN_METHOD && text[0] !== '{';
}

/** Cube's own status has random bytes for versions; a seek without keys has the version. */
async function readOriginalStatus(peer: Peer, timeoutMs: number): Promise<OriginalServerStatus> {
  const { status, text } = await callText(peer, SEEK_PATH, {
    body: { version_required: true },
    timeoutMs,
  });
  if (status !== 200) {
    throw new CubeError(
      'UNSUPPORTED',
      `${peer.address}: neither a cube-server nor a server of PaddlePaddle Cube ` +
        `(HTTP status ${status} for ${SEEK_PATH}): ${text.slice(0, 200)}`,
    );
  }
  const json = JsonReader.parse(text, `the response of ${peer.address} to ${SEEK_PATH}`);
  return { originalVersion: json.optional('version', (field) => field.string()) ?? '' };
}

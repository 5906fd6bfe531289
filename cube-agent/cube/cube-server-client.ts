/**
 * A cube-server with Cube's commands: the original C++ one, or ours with `--cube-data`. The
 * original's responses are not reliable: it sends 200 for loads that failed or lost files, and its
 * status has random bytes. So only the values that it returns for keys are trusted.
 */
import { CubeDictClient } from '../../lib/client/dict-client.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Fleet } from '../../lib/core/fleet.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import { OUTCOME_HIT, OUTCOME_UNAVAILABLE } from '../../lib/core/lookup-group.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import { callText, type TextResponse } from '../../lib/rpc/json-call.ts';
import type { SeekSample } from './seek-sample.ts';

const CMD_PATH = '/ControlService/cmd';
const COMMAND_TIMEOUT_MS = 30_000;
/**
 * A load responds when it is done. HTTP clients give up after five minutes, so long ones are
 * polled.
 */
const LOAD_CALL_MS = 240_000;
const LOAD_POLL_MS = 500;
const SEEK_TIMEOUT_MS = 10_000;
const DICT = 'dict';

export interface CubeServerOptions {
  /** host:port of both lookups and commands. */
  readonly address: string;
  readonly shard: number;
  readonly shardNum: number;
  /** For our servers, which may require some. */
  readonly credentials: Credentials;
  readonly clock: Clock;
}

export class CubeServerClient {
  readonly #options: CubeServerOptions;
  readonly #client: CubeDictClient;

  constructor(options: CubeServerOptions) {
    const { address, shardNum } = options;
    this.#options = options;
    // Keys of other shards are never looked up, so all shards can have this address.
    const replica = { data: address, control: address, group: 'default' };
    const shards = Array.from({ length: shardNum }, () => [replica]);
    const fleet: Fleet = { bundles: new Map([[DICT, [{ shardNum, shards }]]]) };
    this.#client = new CubeDictClient({ fleet: () => fleet });
  }

  get address(): string {
    return this.#options.address;
  }

  /**
   * The version that lookups use; empty if none, or without a name. @throws CubeError UNAVAILABLE
   */
  async readVersion(): Promise<string> {
    const { shard } = this.#options;
    const key = Uint32Array.of(shard, 0);
    const { versions, unavailable, reason } = await this.#seek(key);
    if (unavailable === 0) return versions[0] ?? '';
    // Our servers refuse lookups without a version, and report that in their status.
    const { text } = await this.#cmd({ cmd: 'status' }, COMMAND_TIMEOUT_MS);
    if (/"cur_version"\s*:\s*""/.test(text)) return '';
    throw new CubeError('UNAVAILABLE', `${this.address}: ${reason}`);
  }

  /** Loads a directory and waits for the end. @throws CubeError with the server's error */
  async load(version: string, timeoutMs: number): Promise<void> {
    const { clock } = this.#options;
    const endMs = clock.nowMs() + timeoutMs;
    const command = { cmd: 'bg_load_base', version_path: `/${version}` };
    try {
      await this.command(command, Math.min(timeoutMs, LOAD_CALL_MS));
    } catch (error) {
      if (CubeError.from(error).code !== 'DEADLINE_EXCEEDED') throw error;
      while (await this.#isLoading()) {
        if (clock.nowMs() > endMs) throw error;
        await clock.sleep(LOAD_POLL_MS);
      }
    }
  }

  /** @throws CubeError CONFLICT with the server's reason, if it gives one */
  async command(body: object, timeoutMs: number = COMMAND_TIMEOUT_MS): Promise<void> {
    const { status, headers } = await this.#cmd(body, timeoutMs);
    if (status === 200) return;
    const encodedReason = headers['x-hypercube-error'];
    const reason =
      encodedReason === undefined ? 'see its log' : decodeHeader(String(encodedReason));
    const what = JSON.stringify(body);
    throw new CubeError(
      'CONFLICT',
      `${this.address}: ${what} failed with HTTP ${status}: ${reason}`,
    );
  }

  /**
   * Looks up the keys of a sample and compares every byte.
   * @throws CubeError CORRUPT naming the first wrong key; CONFLICT for another version; UNAVAILABLE
   */
  async verify(version: string, sample: SeekSample): Promise<void> {
    const keys = sample.toKeys();
    const answer = await this.#seek(keys);
    const { versions, values, ends, outcomes } = answer;
    if (answer.unavailable > 0) {
      throw new CubeError('UNAVAILABLE', `${this.address}: ${answer.reason}`);
    }
    if (versions.length !== 1 || versions[0] !== version) {
      const served = versions.map((name) => name || 'no version').join(' and ');
      const text = `${this.address} serves ${served}, not ${version}`;
      throw new CubeError('CONFLICT', text);
    }
    for (const [i, { value }] of sample.expectations.entries()) {
      const isHit = outcomes[i] === OUTCOME_HIT;
      const got = values.subarray(i === 0 ? 0 : ends[i - 1], ends[i]);
      const isRight = value === undefined ? !isHit : isHit && Buffer.compare(got, value) === 0;
      if (isRight && outcomes[i] !== OUTCOME_UNAVAILABLE) continue;
      const wrong = isHit ? (value === undefined ? 'a deleted value' : 'another value') : 'nothing';
      throw new CubeError(
        'CORRUPT',
        `${this.address} returned ${wrong} for key ${keyToBigint(keys, i)} of version ${version}`,
      );
    }
  }

  close(): void {
    this.#client.close();
  }

  #seek(keys: Uint32Array): ReturnType<CubeDictClient['seek']> {
    return this.#client.seek(DICT, keys, { timeoutMs: SEEK_TIMEOUT_MS });
  }

  /**
   * The original's text is not always valid JSON because of its random bytes; the number is right.
   */
  async #isLoading(): Promise<boolean> {
    const { text } = await this.#cmd({ cmd: 'status' }, COMMAND_TIMEOUT_MS);
    return /"status"\s*:\s*1\b/.test(text);
  }

  #cmd(body: object, timeoutMs: number): Promise<TextResponse> {
    const { address, credentials } = this.#options;
    const peer = { address, credentials, role: 'cube-server' };
    return callText(peer, CMD_PATH, { body, timeoutMs });
  }
}

function decodeHeader(text: string): string {
  try {
    return decodeURI(text);
  } catch {
    return text;
  }
}

/** The control calls to one cube-server: JSON over HTTP, with a deadline (docs/wire/README.md). */
import { CubeError, ERROR_STATUS, type ErrorCode } from '../lib/core/errors.ts';
import { JsonReader } from '../lib/core/json.ts';
import {
  type ActivateAnswer,
  CONTROL_ACTIVATE,
  CONTROL_LOAD,
  CONTROL_STATUS,
  CONTROL_UNLOAD,
  type ControlStatus,
  type LoadAnswer,
  readControlStatus,
  readLoadAnswer,
  type UnloadAnswer,
  type UnloadRequest,
  type VersionRequest,
} from '../proto/control.ts';

const STATUS_TIMEOUT_MS = 5_000;
const CALL_TIMEOUT_MS = 30_000;
/** A load answers when it is done. The server goes on with it after a timeout, and its status says so. */
const LOAD_TIMEOUT_MS = 240_000;

export class ControlClient {
  /** host:port */
  readonly address: string;

  readonly #token: string | undefined;

  /** @param token for servers that ask for one (cube-server --control-token-file) */
  constructor(address: string, token?: string) {
    this.address = address;
    this.#token = token;
  }

  async status(signal?: AbortSignal): Promise<ControlStatus> {
    return readControlStatus(
      await this.#call(CONTROL_STATUS, undefined, STATUS_TIMEOUT_MS, signal),
    );
  }

  async load(request: VersionRequest, signal?: AbortSignal): Promise<LoadAnswer> {
    return readLoadAnswer(await this.#call(CONTROL_LOAD, request, LOAD_TIMEOUT_MS, signal));
  }

  async activate(request: VersionRequest, signal?: AbortSignal): Promise<ActivateAnswer> {
    const json = await this.#call(CONTROL_ACTIVATE, request, CALL_TIMEOUT_MS, signal);
    return { active: json.field('active').string() };
  }

  async unload(request: UnloadRequest, signal?: AbortSignal): Promise<UnloadAnswer> {
    const json = await this.#call(CONTROL_UNLOAD, request, CALL_TIMEOUT_MS, signal);
    return { unloaded: json.field('unloaded').boolean() };
  }

  /** @throws CubeError the server's own code and text; UNAVAILABLE or DEADLINE_EXCEEDED when there is no answer */
  async #call(
    path: string,
    body: VersionRequest | undefined,
    timeoutMs: number,
    signal: AbortSignal | undefined,
  ): Promise<JsonReader> {
    const timeout = AbortSignal.timeout(timeoutMs);
    const headers: Record<string, string> = {};
    if (this.#token !== undefined) headers['authorization'] = `Bearer ${this.#token}`;
    if (body !== undefined) headers['content-type'] = 'application/json';
    const init: RequestInit =
      body === undefined ? { headers } : { method: 'POST', headers, body: JSON.stringify(body) };
    let text: string;
    let status: number;
    try {
      const response = await fetch(`http://${this.address}${path}`, {
        ...init,
        signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
      });
      status = response.status;
      text = await response.text();
    } catch (error) {
      throw this.#noAnswer(error, timeout, timeoutMs, signal);
    }
    const json = JsonReader.parse(text, `the answer of ${this.address} to ${path}`);
    if (status < 400) return json;
    const code = json.optional('code', (field) => field.string()) ?? '';
    const message = json.optional('error', (field) => field.string()) ?? `HTTP status ${status}`;
    throw new CubeError(
      Object.hasOwn(ERROR_STATUS, code) ? (code as ErrorCode) : 'INTERNAL',
      message,
    );
  }

  #noAnswer(
    error: unknown,
    timeout: AbortSignal,
    timeoutMs: number,
    signal: AbortSignal | undefined,
  ): CubeError {
    if (signal?.aborted) return new CubeError('STOPPING', 'stopped', { cause: error });
    if (timeout.aborted) {
      return new CubeError(
        'DEADLINE_EXCEEDED',
        `cube-server at ${this.address} did not answer within ${timeoutMs} ms`,
        { cause: error },
      );
    }
    const { cause } = error as { cause?: { code?: string; message?: string } };
    const told = cause?.code ?? cause?.message ?? (error as Error).message;
    // The fetch standard forbids ports of other protocols (6000, 6665 to 6669, 10080 and so on).
    const why = told === 'bad port' ? 'HTTP clients refuse this port; take another' : told;
    return new CubeError('UNAVAILABLE', `no cube-server answers at ${this.address} (${why})`, {
      cause: error,
    });
  }
}

/** Client of a cube-server's control calls: JSON over HTTP with timeouts (docs/wire/README.md). */
import type { JsonReader } from '../../lib/core/json.ts';
import { type Credentials, NO_CREDENTIALS } from '../../lib/rpc/credentials.ts';
import { callJson } from '../../lib/rpc/json-call.ts';
import {
  type ActivateAnswer,
  askForStatus,
  CONTROL_ACTIVATE,
  CONTROL_DRAIN,
  CONTROL_LOAD,
  CONTROL_STATUS,
  CONTROL_UNDRAIN,
  CONTROL_UNLOAD,
  type ControlStatus,
  type LoadAnswer,
  type LoadRequest,
  readControlStatus,
  readLoadAnswer,
  readWithStatus,
  type UnloadAnswer,
  type UnloadRequest,
  type VersionRequest,
  type WithStatus,
} from '../../proto/control.ts';

const STATUS_TIMEOUT_MS = 5_000;
const CALL_TIMEOUT_MS = 30_000;
/**
 * A load answers when it is done. After a timeout the server continues it and reports its state.
 */
const LOAD_TIMEOUT_MS = 240_000;

export class ControlClient {
  /** host:port */
  readonly address: string;

  readonly #credentials: Credentials;

  /** @param credentials for servers with --control-token-file or --tls-ca */
  constructor(address: string, credentials: Credentials = NO_CREDENTIALS) {
    this.address = address;
    this.#credentials = credentials;
  }

  async status(signal?: AbortSignal): Promise<ControlStatus> {
    return readControlStatus(
      await this.#call(CONTROL_STATUS, undefined, STATUS_TIMEOUT_MS, signal),
    );
  }

  async load(request: LoadRequest, signal?: AbortSignal): Promise<WithStatus<LoadAnswer>> {
    const json = await this.#call(CONTROL_LOAD, askForStatus(request), LOAD_TIMEOUT_MS, signal);
    return readWithStatus(json, readLoadAnswer(json));
  }

  async activate(
    request: VersionRequest,
    signal?: AbortSignal,
  ): Promise<WithStatus<ActivateAnswer>> {
    const json = await this.#call(CONTROL_ACTIVATE, askForStatus(request), CALL_TIMEOUT_MS, signal);
    return readWithStatus(json, { active: json.field('active').string() });
  }

  async unload(request: UnloadRequest, signal?: AbortSignal): Promise<WithStatus<UnloadAnswer>> {
    const json = await this.#call(CONTROL_UNLOAD, askForStatus(request), CALL_TIMEOUT_MS, signal);
    return readWithStatus(json, { unloaded: json.field('unloaded').boolean() });
  }

  /** Makes the server refuse lookups, or answer them again. */
  async drain(draining: boolean): Promise<void> {
    const path = draining ? CONTROL_DRAIN : CONTROL_UNDRAIN;
    await this.#call(path, {}, CALL_TIMEOUT_MS, undefined);
  }

  /** @throws CubeError like callJson */
  #call(
    path: string,
    body: object | undefined,
    timeoutMs: number,
    signal: AbortSignal | undefined,
  ): Promise<JsonReader> {
    const peer = { address: this.address, credentials: this.#credentials, role: 'cube-server' };
    return callJson(peer, path, { timeoutMs, signal, ...(body === undefined ? {} : { body }) });
  }
}

/**
 * One serving process that answers with one version, started for a gate and ended with it: also a gate that is killed leaves none
 * behind, since serving ends with the process that keeps it. On loopback, at a free port.
 */
import { join } from 'node:path';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { KeptProcess } from '../../lib/platform/kept-process.ts';
import { NO_CREDENTIALS } from '../../lib/rpc/credentials.ts';
import { callJson } from '../../lib/rpc/json-call.ts';

/** dist/serving/main.js, seen from dist/cube-agent/gate. */
const SERVING_SCRIPT = join(import.meta.dirname, '..', '..', 'serving', 'main.js');
const POLL_MS = 50;
const STATUS_TIMEOUT_MS = 5_000;
/** What is kept of its log, to say why it ended. */
const WORDS_KEPT = 5;
/** A version that fails so is no better on another host, or later. */
const UNFIT_CODES: readonly ErrorCode[] = [
  'INVALID_ARGUMENT',
  'CORRUPT',
  'UNSUPPORTED',
  'INTERNAL',
];

export interface PinnedServingOptions {
  /** For messages: "candidate", "baseline". */
  readonly role: string;
  readonly repository: string;
  readonly bundle: string;
  readonly version: string;
  /** Flags of serving: where rows come from, and whatever else. */
  readonly flags: readonly string[];
  readonly readyTimeoutMs: number;
  readonly signal: AbortSignal;
}

/** The version cannot be served at all, here or anywhere. */
export class UnfitVersion extends CubeError {
  readonly version: string;

  constructor(version: string, code: ErrorCode, message: string) {
    super(code, message);
    this.version = version;
  }
}

export class PinnedServing {
  readonly #options: PinnedServingOptions;
  readonly #process: KeptProcess;
  readonly #words: string[] = [];
  #address = '';
  #end: CubeError | undefined;

  private constructor(options: PinnedServingOptions) {
    this.#options = options;
    this.#process = new KeptProcess({
      args: [SERVING_SCRIPT, ...flagsOf(options)],
      clock: systemClock,
      onLine: (line) => {
        this.#words.push(line);
        if (this.#words.length > WORDS_KEPT) this.#words.shift();
      },
      onListening: (address) => {
        this.#address = address;
      },
      // Never started again: half of an answer to a gate is none.
      onEnd: ({ code, signal }) => this.#noteEnd(signal ?? `exit ${code}`),
    });
  }

  /**
   * Resolves when the version answers; nothing is left running when it does not.
   * @throws UnfitVersion saying why it never will; CubeError UNAVAILABLE, DEADLINE_EXCEEDED, STOPPING
   */
  static async start(options: PinnedServingOptions): Promise<PinnedServing> {
    const serving = new PinnedServing(options);
    try {
      await serving.#process.start();
      await serving.#untilReady();
      return serving;
    } catch (error) {
      await serving.stop();
      throw error;
    }
  }

  /** host:port */
  get address(): string {
    return this.#address;
  }

  /** Why it has ended by itself. */
  get end(): CubeError | undefined {
    return this.#end;
  }

  async stop(): Promise<void> {
    await this.#process.stop();
  }

  async #untilReady(): Promise<void> {
    const { role, version, readyTimeoutMs, signal } = this.#options;
    const endMs = systemClock.nowMs() + readyTimeoutMs;
    let why = 'it is loading';
    while (systemClock.nowMs() < endMs) {
      if (signal.aborted) throw new CubeError('STOPPING', 'the gate was told to stop');
      if (this.#end !== undefined) throw this.#end;
      const status = await this.#status();
      if (status.ready) return;
      why = status.why ?? why;
      await systemClock.sleep(POLL_MS, signal);
    }
    throw new CubeError(
      'DEADLINE_EXCEEDED',
      `the ${role}'s serving process was not ready with version ${version} after ${readyTimeoutMs} ms: ${why}`,
    );
  }

  /** @throws UnfitVersion */
  async #status(): Promise<{ ready: boolean; why: string | undefined }> {
    const { bundle, version } = this.#options;
    const peer = { address: this.#address, credentials: NO_CREDENTIALS, name: 'serving' };
    const json = await callJson(peer, '/v1/status', { timeoutMs: STATUS_TIMEOUT_MS });
    const ready = json.field('ready').boolean();
    const [failure] = json.field('failed').items();
    const why = failure?.field('message').string();
    const code = failure?.field('code').string() as ErrorCode | undefined;
    if (!ready && code !== undefined && UNFIT_CODES.includes(code)) {
      throw new UnfitVersion(version, code, `${bundle} ${version} cannot be served: ${why}`);
    }
    return { ready, why };
  }

  #noteEnd(how: string): string {
    const { role, version } = this.#options;
    const words = this.#words.length === 0 ? '' : `; its last words: ${this.#words.join(' | ')}`;
    const why = `the ${role}'s serving process, of version ${version}, ended (${how})${words}`;
    this.#end = new CubeError('UNAVAILABLE', why);
    return why;
  }
}

function flagsOf({ repository, bundle, version, flags }: PinnedServingOptions): string[] {
  return [
    ...['--host', '127.0.0.1', '--port', '0', '--log-level', 'warn'],
    ...['--repository', repository, '--bundle', bundle, '--pinned-version', version],
    // What golden rows do to the version belongs into the report: the gate sends them itself.
    ...['--warm-up', 'synthetic', '--instances', '1'],
    ...flags,
  ];
}

/**
 * A serving process for one version, started by a gate on a free loopback port. It ends with the
 * gate, even when the gate is killed.
 */
import { join } from 'node:path';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { toArguments } from '../../lib/platform/arguments.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { SupervisedProcess } from '../../lib/platform/supervised-process.ts';
import { NO_CREDENTIALS } from '../../lib/rpc/credentials.ts';
import { callJson } from '../../lib/rpc/json-call.ts';

/** dist/serving/main.js, seen from dist/cube-agent/gate. */
const SERVING_SCRIPT = join(import.meta.dirname, '..', '..', 'serving', 'main.js');
const POLL_MS = 50;
const STATUS_TIMEOUT_MS = 5_000;
/** Last log lines that are kept to explain why the process ended. */
const LOG_LINES_MAX = 5;
/** Codes of failures that would repeat on any host at any time. */
const UNSERVABLE_CODES: readonly ErrorCode[] = [
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
  /** Additional flags of serving, for example the store. */
  readonly flags: readonly string[];
  readonly readyTimeoutMs: number;
  readonly signal: AbortSignal;
}

/** The version can never be served, on any host. */
export class UnservableVersionError extends CubeError {
  readonly version: string;

  constructor(version: string, code: ErrorCode, message: string) {
    super(code, message);
    this.version = version;
  }
}

export class PinnedServing {
  readonly #options: PinnedServingOptions;
  readonly #process: SupervisedProcess;
  readonly #logLines: string[] = [];
  #address = '';
  #end: CubeError | undefined;

  private constructor(options: PinnedServingOptions) {
    this.#options = options;
    this.#process = new SupervisedProcess({
      args: [SERVING_SCRIPT, ...buildFlags(options)],
      clock: systemClock,
      onLine: (line) => {
        this.#logLines.push(line);
        if (this.#logLines.length > LOG_LINES_MAX) this.#logLines.shift();
      },
      onListening: (address) => {
        this.#address = address;
      },
      // Never restarted: a gate needs the results of one process.
      onExit: ({ code, signal }) => this.#recordExit(signal ?? `exit ${code}`),
    });
  }

  /**
   * Resolves when the version is ready. On an error the process is stopped.
   * @throws UnservableVersionError with the reason; CubeError UNAVAILABLE, DEADLINE_EXCEEDED,
   *   STOPPING
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

  /** Why the process has ended by itself; undefined while it runs. */
  get exitError(): CubeError | undefined {
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
      if (signal.aborted) throw new CubeError('STOPPING', 'the gate was stopped');
      if (this.#end !== undefined) throw this.#end;
      const status = await this.#status();
      if (status.ready) return;
      why = status.why ?? why;
      await systemClock.sleep(POLL_MS, signal);
    }
    throw new CubeError(
      'DEADLINE_EXCEEDED',
      `the serving process of the ${role}, version ${version}, was not ready after ` +
        `${readyTimeoutMs} ms: ${why}`,
    );
  }

  /** @throws UnservableVersionError */
  async #status(): Promise<{ ready: boolean; why: string | undefined }> {
    const { bundle, version } = this.#options;
    const peer = { address: this.#address, credentials: NO_CREDENTIALS, role: 'serving' };
    const json = await callJson(peer, '/v1/status', { timeoutMs: STATUS_TIMEOUT_MS });
    const ready = json.field('ready').boolean();
    const [failure] = json.field('failed').items();
    const why = failure?.field('message').string();
    const code = failure?.field('code').string() as ErrorCode | undefined;
    if (!ready && code !== undefined && UNSERVABLE_CODES.includes(code)) {
      throw new UnservableVersionError(
        version,
        code,
        `${bundle} ${version} cannot be served: ${why}`,
      );
    }
    return { ready, why };
  }

  #recordExit(how: string): string {
    const { role, version } = this.#options;
    const log = this.#logLines.join(' | ');
    const detail = log === '' ? '' : `; its last log lines: ${log}`;
    const why = `the serving process of the ${role}, version ${version}, ended (${how})${detail}`;
    this.#end = new CubeError('UNAVAILABLE', why);
    return why;
  }
}

function buildFlags({ repository, bundle, version, flags }: PinnedServingOptions): string[] {
  return [
    ...toArguments({
      host: '127.0.0.1',
      port: 0,
      logLevel: 'warn',
      repository,
      bundle,
      pinnedVersion: version,
      // The gate itself sends the golden rows, so that their failures are in the report. Random
      // rows could fail in one run and not in the next.
      warmUp: 'synthetic',
      warmUpEntries: 'zeros:1',
      instances: 1,
    }),
    ...flags,
  ];
}

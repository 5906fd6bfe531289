/**
 * Serving for tests, with the flags of its command line: a process of its own where a test needs
 * one, else a server in the process of the test, which starts in a tenth of the CPU time.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { createCli } from '../../../lib/platform/cli.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { completeConfig } from '../../../serving/config/serving-config.ts';
import {
  addSettingOptions,
  mergeSettings,
  type SettingFlags,
} from '../../../serving/config/settings-flags.ts';
import { startServing } from '../../../serving/server.ts';
import { killOnTestEnd, onTestEnd, temporaryFolder } from '../../repository/support/fixtures.ts';

const MAIN = fileURLToPath(new URL('../../../serving/main.js', import.meta.url));

/** Flags whose files only the command line reads. */
const FILE_FLAG = /^--(config|conf-dir|flagfile|pipeline|log-file)\b/;

/** Long, so that requests do not fail on a busy machine. Tests of deadlines set their own. */
const TIMEOUT_MS = '30000';

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly body: ReturnType<typeof JSON.parse>;
}

export interface ServingProcessOptions {
  /** The test sends signals to the process, or looks at it from outside. */
  readonly isProcess?: boolean;
  readonly cwd?: string;
  /** Further environment variables of a process. */
  readonly env?: Readonly<Record<string, string>>;
  /** Where the process writes its log, if not to stderr. */
  readonly logFile?: string;
  /** The configuration has several models, so that flags of models are refused. */
  readonly hasSeveralModels?: boolean;
  /** The ports are those of the configuration file. */
  readonly hasOwnPort?: boolean;
}

export class ServingProcess {
  readonly #child: ChildProcess | undefined;
  readonly #lines: string[] = [];
  /** The log of a server in this process. */
  readonly #logFile: string | undefined;
  #stopServer: () => Promise<void> = async () => undefined;
  url = '';

  private constructor(child: ChildProcess | undefined, logFile?: string) {
    this.#child = child;
    this.#logFile = logFile;
  }

  /** @throws Error for a server in this process */
  get child(): ChildProcess {
    if (this.#child === undefined) throw new Error('start it with isProcess');
    return this.#child;
  }

  /** The lines of the log so far. */
  get log(): readonly string[] {
    if (this.#logFile === undefined) return this.#lines;
    return existsSync(this.#logFile)
      ? readFileSync(this.#logFile, 'utf8').split('\n').slice(0, -1)
      : [];
  }

  /** Starts serving and waits until it listens. */
  static async start(
    t: TestContext,
    flags: readonly string[],
    options: ServingProcessOptions = {},
  ): Promise<ServingProcess> {
    // A configuration file has its own settings.
    const isByFile = flags.some((flag) => /^--(config|conf-dir|flagfile)\b/.test(flag));
    const patience = isByFile ? [] : ['--timeout-ms', TIMEOUT_MS];
    const isRefused = ['--config', '--model-repository'].some((flag) => flags.includes(flag));
    const poll = isRefused || options.hasSeveralModels ? [] : ['--poll-ms', '50'];
    const port = options.hasOwnPort === true ? [] : ['--port', '0'];
    const own = [...port, ...poll, ...patience];
    const isProcess =
      options.isProcess === true ||
      options.cwd !== undefined ||
      flags[0]?.startsWith('-') === false ||
      flags.some((flag) => FILE_FLAG.test(flag));
    if (!isProcess) return ServingProcess.#startHere(t, [...own, ...flags]);
    const child = spawn(process.execPath, [MAIN, ...own, ...flags], {
      cwd: options.cwd,
      env: { ...process.env, ...options.env },
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    const serving = new ServingProcess(child);
    killOnTestEnd(t, child);
    await new Promise<void>((resolve, reject) => {
      createInterface({ input: child.stderr! }).on('line', (line) => {
        serving.#lines.push(line);
        if (serving.#readAddress(line)) resolve();
      });
      if (options.logFile !== undefined) resolve(serving.#readAddressFrom(options.logFile));
      child.once('exit', (code) => reject(new Error(`exit ${code}: ${serving.log.join('\n')}`)));
    });
    return serving;
  }

  static async #startHere(t: TestContext, flags: readonly string[]): Promise<ServingProcess> {
    const program = addSettingOptions(createCli('serving', 'Serving')).parse(flags, {
      from: 'user',
    });
    const config = completeConfig(mergeSettings(undefined, program.opts<SettingFlags>()));
    const path = join(temporaryFolder(t), 'serving.log');
    const logger = createLogger('serving', {
      level: config.logLevel,
      format: 'json',
      file: { path, bytesMax: 64 << 20, filesMax: 1 },
    });
    const serving = new ServingProcess(undefined, path);
    const server = await startServing({ config, logger });
    let stopping: Promise<void> | undefined;
    serving.#stopServer = () => {
      stopping ??= server.stop();
      return stopping;
    };
    onTestEnd(t, () => serving.#stopServer());
    serving.url = `http://${server.address}`;
    return serving;
  }

  #readAddress(line: string): boolean {
    if (!line.includes('"msg":"listening"')) return false;
    this.url = `http://${JSON.parse(line).address}`;
    return true;
  }

  async #readAddressFrom(logFile: string): Promise<void> {
    for (;;) {
      const lines = existsSync(logFile)
        ? readFileSync(logFile, 'utf8').split('\n').slice(0, -1)
        : [];
      if (lines.some((line) => this.#readAddress(line))) return;
      if (this.child.exitCode !== null) throw new Error(`exit: ${this.log.join('\n')}`);
      await sleep(20);
    }
  }

  async get(path: string): Promise<Answer> {
    return readAnswer(await fetch(this.url + path));
  }

  async post(
    path: string,
    body: string | Uint8Array,
    headers: Record<string, string> = { 'content-type': 'application/json' },
  ): Promise<Answer> {
    return readAnswer(
      await fetch(this.url + path, { method: 'POST', body: body as string, headers }),
    );
  }

  /** @param model default: the only model, or the first */
  postTsv(text: string, model?: string): Promise<Answer> {
    const path = `/v1/ctr:predict${model === undefined ? '' : `?model=${model}`}`;
    return this.post(path, text, { 'content-type': 'text/tab-separated-values' });
  }

  /** Waits until `accept` returns true for the response to `path`; asks ever less often. */
  async waitFor(path: string, accept: (answer: Answer) => boolean): Promise<Answer> {
    for (let pauseMs = 20; ; pauseMs = Math.min(100, 1.2 * pauseMs)) {
      const answer = await this.get(path);
      if (accept(answer)) return answer;
      await sleep(pauseMs);
    }
  }

  waitUntilReady(): Promise<Answer> {
    return this.waitFor('/readyz', ({ status }) => status === 200);
  }

  waitUntilActive(version: string): Promise<Answer> {
    return this.waitFor('/v1/status', ({ body }) => body.active === version);
  }

  /** @returns the exit code; 0 for a server in this process */
  async stop(): Promise<number | null> {
    if (this.#child === undefined) {
      await this.#stopServer();
      return 0;
    }
    this.child.kill('SIGTERM');
    if (this.child.exitCode === null) await once(this.child, 'exit');
    return this.child.exitCode;
  }
}

async function readAnswer(response: Response): Promise<Answer> {
  const text = await response.text();
  const isJson = response.headers.get('content-type')?.includes('json');
  const { status, headers } = response;
  return { status, headers, body: isJson ? JSON.parse(text) : text };
}

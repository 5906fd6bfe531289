/** A serving process for tests: started from main.js, found by its log, stopped with the test. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { killOnTestEnd } from '../../repository/support/fixtures.ts';

const MAIN = fileURLToPath(new URL('../../../serving/main.js', import.meta.url));

/** Long, so that requests do not fail on a busy machine. Tests of deadlines set their own. */
const TIMEOUT_MS = '30000';

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly body: ReturnType<typeof JSON.parse>;
}

export interface ServingProcessOptions {
  readonly cwd?: string;
  /** Where the process writes its log, if not to stderr. */
  readonly logFile?: string;
  /** The configuration has several models, so that flags of models are refused. */
  readonly hasSeveralModels?: boolean;
  /** The ports are those of the configuration file. */
  readonly hasOwnPort?: boolean;
}

export class ServingProcess {
  readonly child: ChildProcess;
  readonly log: string[] = [];
  url = '';

  private constructor(child: ChildProcess) {
    this.child = child;
  }

  /** Starts the process and waits for the log line with its address. */
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
    const child = spawn(process.execPath, [MAIN, ...own, ...flags], {
      cwd: options.cwd,
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    const serving = new ServingProcess(child);
    killOnTestEnd(t, child);
    await new Promise<void>((resolve, reject) => {
      createInterface({ input: child.stderr! }).on('line', (line) => {
        serving.log.push(line);
        if (serving.#readAddress(line)) resolve();
      });
      if (options.logFile !== undefined) resolve(serving.#readAddressFrom(options.logFile));
      child.once('exit', (code) => reject(new Error(`exit ${code}: ${serving.log.join('\n')}`)));
    });
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

  /** @returns the exit code */
  async stop(): Promise<number | null> {
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

/** A real serving process for tests: started from its main.js, found by its log, stopped with the test. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { killAtEnd } from '../repository/fixtures.ts';

const MAIN = fileURLToPath(new URL('../../serving/main.js', import.meta.url));

/** A request that waits because the machine is busy has not failed. A test that means the deadline gives its own. */
const TIMEOUT_MS = '30000';

export interface Answer {
  readonly status: number;
  readonly body: ReturnType<typeof JSON.parse>;
}

export class ServingProcess {
  readonly child: ChildProcess;
  readonly log: string[] = [];
  url = '';

  private constructor(child: ChildProcess) {
    this.child = child;
  }

  /** Starts and waits for the line that says where it listens. */
  static async start(t: TestContext, flags: readonly string[]): Promise<ServingProcess> {
    // A file says it for each of its models.
    const isByFile = flags.includes('--config') || flags.includes('--conf-dir');
    const patience = isByFile ? [] : ['--timeout-ms', TIMEOUT_MS];
    const poll = flags.includes('--config') ? [] : ['--poll-ms', '50'];
    const own = ['--port', '0', ...poll, ...patience];
    const child = spawn(process.execPath, [MAIN, ...own, ...flags], {
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    const serving = new ServingProcess(child);
    killAtEnd(t, child);
    await new Promise<void>((resolve, reject) => {
      createInterface({ input: child.stderr! }).on('line', (line) => {
        serving.log.push(line);
        if (!line.includes('"msg":"listening"')) return;
        serving.url = `http://${JSON.parse(line).address}`;
        resolve();
      });
      child.once('exit', (code) => reject(new Error(`exit ${code}: ${serving.log.join('\n')}`)));
    });
    return serving;
  }

  async get(path: string): Promise<Answer> {
    return answerOf(await fetch(this.url + path));
  }

  async post(
    path: string,
    body: string | Uint8Array,
    headers: Record<string, string> = { 'content-type': 'application/json' },
  ): Promise<Answer> {
    return answerOf(
      await fetch(this.url + path, { method: 'POST', body: body as string, headers }),
    );
  }

  /** @param model absent: the only one, or the first */
  postTsv(text: string, model?: string): Promise<Answer> {
    const path = `/v1/ctr:predict${model === undefined ? '' : `?model=${model}`}`;
    return this.post(path, text, { 'content-type': 'text/tab-separated-values' });
  }

  /** Waits until `path` answers what `accept` takes. */
  async until(path: string, accept: (answer: Answer) => boolean): Promise<Answer> {
    for (;;) {
      const answer = await this.get(path);
      if (accept(answer)) return answer;
      await sleep(20);
    }
  }

  untilReady(): Promise<Answer> {
    return this.until('/readyz', ({ status }) => status === 200);
  }

  untilActive(version: string): Promise<Answer> {
    return this.until('/v1/status', ({ body }) => body.active === version);
  }

  /** @returns the exit code */
  async stop(): Promise<number | null> {
    this.child.kill('SIGTERM');
    if (this.child.exitCode === null) await once(this.child, 'exit');
    return this.child.exitCode;
  }
}

async function answerOf(response: Response): Promise<Answer> {
  const text = await response.text();
  const isJson = response.headers.get('content-type')?.includes('json');
  return { status: response.status, body: isJson ? JSON.parse(text) : text };
}

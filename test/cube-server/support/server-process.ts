/** Starts real cube-server processes and calls them. */
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';

const main = join(import.meta.dirname, '..', '..', '..', 'cube-server', 'main.js');

export interface Exit {
  readonly code: number | null;
  readonly signal: string | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface ControlReply {
  readonly status: number;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers of every shape
  readonly body: any;
}

export interface ProcessOptions {
  /** Use a process group of its own, as a shell does. */
  readonly detached?: boolean;
  /** A module to load before the server. */
  readonly preload?: string;
}

const running = new Set<ServerProcess>();

/**
 * Call it in `after`: a server that a failed test left behind would keep the test process alive.
 */
export function killServers(): void {
  for (const { child } of running) child.kill('SIGKILL');
}

export class ServerProcess {
  readonly child: ChildProcess;
  readonly exited: Promise<Exit>;
  address = '';
  #stderr = '';
  #ended = false;

  /** @param node path of the Node to run */
  constructor(
    flags: readonly string[],
    node: string = process.execPath,
    { detached = false, preload }: ProcessOptions = {},
  ) {
    const preloaded = preload === undefined ? [] : ['--import', preload];
    this.child = spawn(node, [...preloaded, main, ...flags], {
      stdio: ['ignore', 'pipe', 'pipe'],
      detached,
    });
    running.add(this);
    let stdout = '';
    this.child.stdout?.on('data', (chunk) => {
      stdout += chunk;
    });
    this.child.stderr?.on('data', (chunk) => {
      this.#stderr += chunk;
      this.address ||= /"address":"([^"]+)".*"msg":"listening"/.exec(this.#stderr)?.[1] ?? '';
    });
    this.exited = new Promise((resolve) => {
      this.child.on('close', (code, signal) => {
        running.delete(this);
        this.#ended = true;
        resolve({ code, signal, stdout, stderr: this.#stderr });
      });
    });
  }

  /** Starts a server on a free port. */
  static async start(
    flags: readonly string[],
    node?: string,
    options?: ProcessOptions,
  ): Promise<ServerProcess> {
    const server = new ServerProcess(['--port', '0', ...flags], node, options);
    await server.until(() => server.address || undefined);
    return server;
  }

  /** Waits for a log line. @returns the pattern's first group */
  async logged(pattern: RegExp): Promise<string> {
    const match = await this.until(() => pattern.exec(this.#stderr) ?? undefined);
    return match[1] ?? match[0];
  }

  /** Retries until there is a result. @throws Error with the process's log when it ends first */
  async until<T>(ask: () => T | undefined | Promise<T | undefined>): Promise<T> {
    for (;;) {
      const ended = this.#ended;
      const answer = await ask();
      if (answer !== undefined) return answer;
      if (ended) throw new Error(`the server ended: ${this.#stderr}`);
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }

  get port(): number {
    return Number(this.address.slice(this.address.lastIndexOf(':') + 1));
  }

  async control(
    call: string,
    body?: unknown,
    headers: Record<string, string> = {},
  ): Promise<ControlReply> {
    return control(this.address, call, body, headers);
  }

  async stop(): Promise<Exit> {
    this.child.kill('SIGTERM');
    return this.exited;
  }
}

/** A server that accepts a connection and never responds must fail the test, not block it. */
const CONTROL_TIMEOUT_MS = 60_000;

/** A control call; without a body it is a GET, as for status. */
export async function control(
  address: string,
  call: string,
  body?: unknown,
  headers: Record<string, string> = {},
): Promise<ControlReply> {
  const url = `http://${address}/hypercube.ControlService/${call}`;
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  const type = { 'content-type': 'application/json' };
  const init =
    body === undefined
      ? { headers }
      : { method: 'POST', headers: { ...type, ...headers }, body: text };
  const response = await fetch(url, { ...init, signal: AbortSignal.timeout(CONTROL_TIMEOUT_MS) });
  return { status: response.status, body: await response.json() };
}

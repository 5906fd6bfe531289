/**
 * ctr-client with its flags, in this process or one of its own, and servers that stand in for a
 * serving process that misbehaves.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runCommand } from '../../support/commands.ts';

const MAIN = fileURLToPath(new URL('../../../tools/ctr-client/main.js', import.meta.url));

export interface Run {
  readonly exit: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** @param input what it reads from standard input */
export function startClient(
  flags: readonly string[],
  input = '',
): { child: ChildProcess; done: Promise<Run> } {
  const child = spawn(process.execPath, [MAIN, ...flags], { stdio: 'pipe' });
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (piece) => {
    stdout += piece;
  });
  child.stderr.on('data', (piece) => {
    stderr += piece;
  });
  child.stdin.on('error', () => undefined);
  child.stdin.end(input);
  const done = new Promise<Run>((resolve) => {
    child.once('close', (code) => resolve({ exit: code ?? -1, stdout, stderr }));
  });
  return { child, done };
}

/** Runs it to its end in this process. */
export async function ctrClient(...flags: string[]): Promise<Run> {
  const { code, stdout, stderr } = await runCommand('tools/ctr-client/main.js', ...flags);
  return { exit: code ?? -1, stdout, stderr };
}

type Handler = (request: IncomingMessage, response: ServerResponse, body: Buffer) => void;

export async function startServer(t: TestContext, handle: Handler): Promise<string> {
  const server = createServer((incoming, response) => {
    const pieces: Buffer[] = [];
    incoming.on('error', () => undefined);
    incoming.on('data', (piece: Buffer) => pieces.push(piece));
    incoming.on('end', () => handle(incoming, response, Buffer.concat(pieces)));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/**
 * A server that says it is a model of one dense and one categorical feature, and answers
 * predictions as told.
 */
export function startStandIn(t: TestContext, predict: (body: Buffer) => unknown): Promise<string> {
  return startServer(t, (incoming, response, body) => {
    const path = new URL(incoming.url!, 'http://any').pathname;
    const inputs = ['categorical', 'dense'].map((name) => ({ name, shape: [-1, 1] }));
    const answers: Record<string, () => unknown> = {
      '/v2/models': () => ({ models: ['m'] }),
      '/v2/models/m': () => ({ inputs }),
    };
    const answer = (answers[path] ?? (() => predict(body)))();
    response.setHeader('content-type', 'application/json');
    response.end(typeof answer === 'string' ? answer : JSON.stringify(answer));
  });
}

/** Passes requests on to `url`, predictions only when `gate` lets them. */
export function startProxy(
  t: TestContext,
  url: string,
  gate: (prediction: number) => Promise<void>,
): Promise<string> {
  let predictions = 0;
  return startServer(t, async (incoming, response, body) => {
    if (incoming.method === 'POST') await gate(predictions++);
    const { method, headers } = incoming;
    const target = new URL(url);
    const passed = request(
      { host: target.hostname, port: target.port, path: incoming.url, method, headers },
      (answer) => {
        response.writeHead(answer.statusCode!, answer.headers);
        answer.pipe(response);
      },
    );
    passed.on('error', () => response.destroy());
    passed.end(body);
  });
}

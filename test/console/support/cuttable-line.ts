/** A way to a process that can be cut: to a browser, the process has stopped until it is mended. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import type { TestContext } from 'node:test';

export class CuttableLine {
  readonly url: string;
  readonly #port: number;
  readonly #server: Server;
  readonly #callers: Set<Socket>;

  private constructor(server: Server, callers: Set<Socket>) {
    this.#server = server;
    this.#callers = callers;
    this.#port = (server.address() as AddressInfo).port;
    this.url = `http://127.0.0.1:${this.#port}`;
  }

  /** @param url of the process */
  static async start(t: TestContext, url: string): Promise<CuttableLine> {
    const { hostname, port } = new URL(url);
    const callers = new Set<Socket>();
    const server = createServer((caller) => {
      const callee = connect(Number(port), hostname);
      callers.add(caller);
      caller.pipe(callee).pipe(caller);
      caller.on('error', () => callee.destroy()).on('close', () => callee.destroy());
      callee.on('error', () => caller.destroy()).on('close', () => caller.destroy());
      caller.on('close', () => callers.delete(caller));
    });
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const line = new CuttableLine(server, callers);
    t.after(() => line.cut());
    return line;
  }

  cut(): void {
    this.#server.close();
    for (const caller of this.#callers) caller.destroy();
  }

  async mend(): Promise<void> {
    await once(this.#server.listen(this.#port, '127.0.0.1'), 'listening');
  }
}

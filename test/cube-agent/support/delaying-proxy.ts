/** A TCP proxy that delays the responses of a server. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server } from 'node:net';
import type { TestContext } from 'node:test';
import { onTestEnd } from '../../repository/support/fixtures.ts';

export class DelayingProxy {
  readonly address: string;

  private constructor(server: Server) {
    this.address = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  }

  static async start(t: TestContext, target: string, delayMs: number): Promise<DelayingProxy> {
    const [host = '', port] = target.split(':');
    const server = createServer((caller) => {
      const callee = connect(Number(port), host);
      caller.pipe(callee);
      callee.on('data', (bytes) => setTimeout(() => caller.write(bytes), delayMs));
      for (const [one, other] of [
        [caller, callee],
        [callee, caller],
      ] as const) {
        one.on('error', () => other.destroy()).on('close', () => other.destroy());
      }
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    onTestEnd(t, () => server.close());
    return new DelayingProxy(server);
  }
}

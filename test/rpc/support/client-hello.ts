/** The first message of a TLS client, as it is sent to a server. */
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { type ConnectionOptions, connect } from 'node:tls';

export async function recordClientHello(options: ConnectionOptions = {}): Promise<Buffer> {
  const listener = createServer();
  await once(listener.listen(0, '127.0.0.1'), 'listening');
  const { port } = listener.address() as AddressInfo;
  const client = connect({ host: '127.0.0.1', ...options, port });
  client.on('error', () => undefined);
  const [accepted] = (await once(listener, 'connection')) as [Socket];
  const [hello] = (await once(accepted, 'data')) as [Buffer];
  client.destroy();
  accepted.destroy();
  listener.close();
  return hello;
}

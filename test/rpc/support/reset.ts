/** Resets a connection, as a killed process does. */
import type { Socket } from 'node:net';

/**
 * A socket of Node 20 that is reset while it connects or ends keeps its handle, and the process
 * never exits. Such a socket is only destroyed.
 */
export function resetSocket(socket: Socket): void {
  if (socket.connecting || socket.writableEnded) socket.destroy();
  else socket.resetAndDestroy();
}

/** A connection reset, as a killed process leaves it. */
import type { Socket } from 'node:net';

/**
 * Reset while it still connects or already ends, a socket of Node 20 keeps its handle, and the process spins at its end
 * without ever ending: such a one is only destroyed.
 */
export function reset(socket: Socket): void {
  if (socket.connecting || socket.writableEnded) socket.destroy();
  else socket.resetAndDestroy();
}

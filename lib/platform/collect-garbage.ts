/**
 * Collects all garbage of the calling thread. Garbage can hold memory that is shared with other
 * threads, and a thread without work does not collect by itself. It takes about 30 ms of CPU time.
 */
export async function collectGarbage(): Promise<void> {
  // The flag --expose-gc would be set in all threads, and make V8 reject kept code.
  const { Session } = await import('node:inspector/promises');
  const session = new Session();
  session.connect();
  await session.post('HeapProfiler.collectGarbage');
  session.disconnect();
}

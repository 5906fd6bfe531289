/** A shard process under a supervisor: it says when it listens, and ends when the supervisor is gone. */

/** What a shard process tells its supervisor. */
export interface ListeningReport {
  readonly listening: string;
}

/** Does nothing in a process that no supervisor started. */
export function reportToSupervisor(address: string): void {
  if (process.send === undefined) return;
  process.on('disconnect', () => process.kill(process.pid, 'SIGTERM'));
  // The channel must not keep a stopped server alive.
  process.channel?.unref();
  process.send({ listening: address } satisfies ListeningReport);
}

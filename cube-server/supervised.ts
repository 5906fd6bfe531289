/** A shard process under a supervisor: it says when it listens, and stops when the supervisor lets go of it. */

/** What a shard process tells its supervisor. */
export interface ListeningReport {
  readonly listening: string;
}

/** What the supervisor tells a shard process; there is nothing else to say. */
export const STOP_REQUEST = 'stop';

/** Does nothing in a process that no supervisor started. */
export function reportToSupervisor(address: string): void {
  if (process.connected) process.send?.({ listening: address } satisfies ListeningReport);
}

/**
 * Resolves when the supervisor has gone or wants us to stop. No signal: a terminal or a service manager sends its own to
 * all processes of a group, and a second one would end us at once. Undefined in a process that no supervisor started.
 */
export function supervisorLeft(): Promise<string> | undefined {
  if (process.send === undefined) return undefined;
  return new Promise((resolve) => {
    const leave = (): void => resolve('supervisor');
    for (const event of ['message', 'disconnect']) process.on(event, leave);
    if (!process.connected) leave();
    // The channel must not keep a stopped server alive.
    process.channel?.unref();
  });
}

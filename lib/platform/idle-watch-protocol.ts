/** Messages between `IdleMainThread` and the thread that watches it. */

export type ThreadPolicy = 'idle' | 'usual';

export interface IdleWatchData {
  /** Linux's number of the watched thread, which belongs to this process. */
  readonly thread: number;
}

/**
 * Asks for the usual policy for some seconds. The answer is the policy; each change of it is
 * reported in the same way.
 */
export type UsePolicy = 'usual';

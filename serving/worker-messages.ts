/** Messages between serving and its worker processes, over their IPC channels. */

export type MessageToWorker =
  /** A connection comes with the message. */
  | { readonly type: 'connection' }
  | { readonly type: 'collect'; readonly id: number }
  | { readonly type: 'metrics'; readonly id: number; readonly text: string };

export type MessageFromWorker =
  /** It accepts connections; `isReady`: its models are loaded too. */
  | { readonly type: 'state'; readonly isReady: boolean }
  /** It stops by itself and accepts no more connections. */
  | { readonly type: 'leaving' }
  | { readonly type: 'values'; readonly id: number; readonly values: object }
  /** A scrape asks for the metrics of all workers. */
  | { readonly type: 'scrape'; readonly id: number };

/** The CTR convenience call, over HTTP or gRPC: rows as they are in the file. */
import { CtrClient } from '../../../lib/client/ctr-client.ts';
import type { CtrRows } from '../../../lib/client/ctr-rows.ts';
import { CubeError } from '../../../lib/core/errors.ts';
import type { RowsFile } from '../rows/rows-file.ts';
import type { Caller, CallTarget, Send } from './caller.ts';

export class CtrCaller implements Caller {
  readonly #client: CtrClient;
  readonly #model: string;
  readonly #rows: RowsFile['rows'];

  /** @throws CubeError UNSUPPORTED for gRPC where it cannot carry the rows */
  constructor(target: CallTarget, { rows, source }: RowsFile, overGrpc: boolean) {
    if (overGrpc && rows.kind === 'names') {
      const instead = 'use --protocol ctr';
      throw new CubeError('UNSUPPORTED', `${source}: rows by name do not go over gRPC: ${instead}`);
    }
    if (overGrpc && target.url.startsWith('https:')) {
      throw new CubeError('UNSUPPORTED', `${target.url}: gRPC goes unencrypted: give host:port`);
    }
    this.#client = new CtrClient({
      url: overGrpc ? `grpc://${new URL(target.url).host}` : target.url,
      timeoutMs: target.timeoutMs,
      // What fails is counted, not hidden.
      retryMax: 0,
      connectionsMax: target.connectionsMax,
    });
    this.#model = target.shape.name;
    this.#rows = rows;
  }

  prepare(start: number, end: number): Send {
    const { kind, values } = this.#rows;
    const batch = values.slice(start, end);
    const rows = kind === 'lines' ? Buffer.from(`${batch.join('\n')}\n`) : (batch as CtrRows);
    const call = { model: this.#model };
    return async () => {
      const prediction = await this.#client.predict(rows, call);
      const { length } = prediction.probabilities;
      if (length === end - start) return prediction;
      throw new CubeError('INTERNAL', `an answer of ${length} rows to a request of ${end - start}`);
    };
  }

  close(): void {
    this.#client.close();
  }
}

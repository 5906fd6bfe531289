/** The CTR protocol over HTTP or gRPC: sends rows as they are in the file. */
import { CtrClient } from '../../../lib/client/ctr-client.ts';
import type { CtrRows } from '../../../lib/client/ctr-rows.ts';
import { CubeError } from '../../../lib/core/errors.ts';
import type { RowsFile } from '../rows/rows-file.ts';
import type { ProtocolClient, ProtocolClientOptions, SendRequest } from './protocol-client.ts';

export class CtrProtocolClient implements ProtocolClient {
  readonly #client: CtrClient;
  readonly #model: string;
  readonly #isProfiled: boolean;
  readonly #rows: RowsFile['rows'];

  /** @throws CubeError UNSUPPORTED for rows by name over gRPC */
  constructor(target: ProtocolClientOptions, { rows, source }: RowsFile, overGrpc: boolean) {
    if (overGrpc && rows.kind === 'names') {
      throw new CubeError(
        'UNSUPPORTED',
        `${source}: gRPC cannot carry rows by name; use --protocol ctr`,
      );
    }
    const scheme = target.url.startsWith('https:') ? 'grpcs' : 'grpc';
    this.#client = new CtrClient({
      url: overGrpc ? `${scheme}://${new URL(target.url).host}` : target.url,
      ...(target.credentials !== undefined && { credentials: target.credentials }),
      timeoutMs: target.timeoutMs,
      // Failures are counted, not hidden by retries.
      retryMax: 0,
      connectionsMax: target.connectionsMax,
    });
    this.#model = target.shape.name;
    this.#isProfiled = target.profile ?? false;
    this.#rows = rows;
  }

  prepareRequest(start: number, end: number, experimentKey: string): SendRequest {
    const { kind, values } = this.#rows;
    const batch = values.slice(start, end);
    const rows = kind === 'lines' ? Buffer.from(`${batch.join('\n')}\n`) : (batch as CtrRows);
    const call = {
      model: this.#model,
      profile: this.#isProfiled,
      ...(experimentKey !== '' && { experimentKey }),
    };
    return async () => {
      const prediction = await this.#client.predict(rows, call);
      const { length } = prediction.probabilities;
      if (length === end - start) return prediction;
      throw new CubeError(
        'INTERNAL',
        `a request with ${end - start} rows got a response with ${length}`,
      );
    };
  }

  close(): void {
    this.#client.close();
  }
}

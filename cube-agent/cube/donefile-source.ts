/** Reads donefiles from a folder or a server of static files. */
import { CubeError } from '../../lib/core/errors.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { readText } from '../../lib/platform/files.ts';
import { HttpClient } from '../../lib/repository/http-client.ts';
import { type Donefile, parseDonefile } from './donefile.ts';

const DONEFILE_BYTES_MAX = 64 << 20;
const IDLE_MS = 10_000;

export class DonefileSource {
  readonly #address: string;
  readonly #http: HttpClient | undefined;

  /**
   * @param address a folder, or http(s)://…
   * @throws CubeError INVALID_ARGUMENT; UNSUPPORTED for other schemes
   */
  constructor(address: string) {
    this.#address = address.replace(/\/+$/, '');
    const scheme = /^([a-z][a-z0-9+.-]*):\/\//i.exec(address)?.[1]?.toLowerCase();
    if (scheme !== undefined && scheme !== 'http' && scheme !== 'https') {
      throw new CubeError(
        'UNSUPPORTED',
        `donefiles cannot be read over ${scheme}://; pass a folder or http(s)://…`,
      );
    }
    const options = { clock: systemClock, idleMs: IDLE_MS };
    this.#http = scheme === undefined ? undefined : new HttpClient(address, options);
  }

  /** @throws CubeError NOT_FOUND, UNAVAILABLE, TOO_LARGE */
  async readDonefile(name: 'base.txt' | 'patch.txt'): Promise<Donefile> {
    const source = `${this.#http?.location ?? this.#address}/${name}`;
    const text =
      this.#http === undefined
        ? readText(source, DONEFILE_BYTES_MAX)
        : await fetchText(this.#http, name);
    return parseDonefile(text, source);
  }
}

async function fetchText(http: HttpClient, name: string): Promise<string> {
  const response = await http.request('GET', name);
  if (response.status !== 200) {
    response.discard();
    const code = response.status === 404 ? 'NOT_FOUND' : 'UNAVAILABLE';
    throw new CubeError(
      code,
      `${http.location}/${name}: the server responded with HTTP ${response.status}`,
    );
  }
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of response.body()) {
    bytes += chunk.length;
    if (bytes > DONEFILE_BYTES_MAX) {
      const text = `${http.location}/${name} has more than ${DONEFILE_BYTES_MAX} bytes`;
      throw new CubeError('TOO_LARGE', text);
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString();
}

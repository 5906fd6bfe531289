/** Where donefiles lie: a folder, or a server of static files. */
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

  /** @param address a folder, or http(s)://… @throws CubeError INVALID_ARGUMENT, UNSUPPORTED for ftp */
  constructor(address: string) {
    this.#address = address.replace(/\/+$/, '');
    const scheme = /^([a-z][a-z0-9+.-]*):\/\//i.exec(address)?.[1]?.toLowerCase();
    if (scheme !== undefined && scheme !== 'http' && scheme !== 'https') {
      throw new CubeError(
        'UNSUPPORTED',
        `donefiles over ${scheme}:// are not read; give a folder or http(s)://…`,
      );
    }
    const options = { clock: systemClock, idleMs: IDLE_MS };
    this.#http = scheme === undefined ? undefined : new HttpClient(address, options);
  }

  /** @throws CubeError NOT_FOUND when there is none; UNAVAILABLE, TOO_LARGE */
  async read(name: 'base.txt' | 'patch.txt'): Promise<Donefile> {
    const source = `${this.#http?.location ?? this.#address}/${name}`;
    const text =
      this.#http === undefined
        ? readText(source, DONEFILE_BYTES_MAX)
        : await fetchText(this.#http, name);
    return parseDonefile(text, source);
  }
}

async function fetchText(http: HttpClient, name: string): Promise<string> {
  const answer = await http.request('GET', name);
  if (answer.status !== 200) {
    answer.discard();
    const code = answer.status === 404 ? 'NOT_FOUND' : 'UNAVAILABLE';
    throw new CubeError(code, `${http.location}/${name}: answers ${answer.status}`);
  }
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of answer.body()) {
    bytes += piece.length;
    if (bytes > DONEFILE_BYTES_MAX) {
      const text = `${http.location}/${name}: more than ${DONEFILE_BYTES_MAX} bytes`;
      throw new CubeError('TOO_LARGE', text);
    }
    pieces.push(piece);
  }
  return Buffer.concat(pieces).toString();
}

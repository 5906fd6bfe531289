/**
 * A repository below a URL, read from any HTTP server of files. Paths are made of checked names and
 * redirects are not followed, so nothing outside that URL is requested. Layers are streamed to a
 * temporary file, and no more bytes are fetched than they should have.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { removePath } from '../../lib/platform/files.ts';
import { AppendWriter } from '../../lib/platform/spill-file.ts';
import { TemporaryFolder } from '../../lib/platform/temporary-folder.ts';
import { HttpBodyReader } from '../../lib/rpc/http-body.ts';
import type { CheckSource, LocalFile } from './source.ts';

const IDLE_MS = 30_000;
const BUFFER_BYTES = 1 << 20;
/** Limit of the body of an error response. */
const ERROR_BYTES_MAX = 64 << 10;

export class HttpSource implements CheckSource {
  readonly location: string;
  readonly canList = false;
  readonly #body = new HttpBodyReader({ idleMs: IDLE_MS });
  #folder: TemporaryFolder | undefined;
  #files = 0;

  /** @param root URL of the repository */
  constructor(root: string) {
    this.location = root.replace(/\/+$/, '');
  }

  async read(path: string, maxBytes: number): Promise<Uint8Array> {
    const { status, bytes } = await this.#body.read(this.#url(path), maxBytes);
    this.#require(path, status);
    return bytes;
  }

  async exists(path: string): Promise<boolean> {
    const { status } = await this.#body.stream(this.#url(path), Infinity, () => false);
    if (status === 404 || status === 410) return false;
    this.#require(path, status);
    return true;
  }

  async list(): Promise<undefined> {
    return undefined;
  }

  async size(): Promise<undefined> {
    return undefined;
  }

  async open(path: string, bytes: number): Promise<LocalFile> {
    this.#folder ??= new TemporaryFolder('check');
    const target = join(this.#folder.path, String(this.#files++));
    const writer = new AppendWriter(target, BUFFER_BYTES);
    try {
      const limit = Math.max(bytes, ERROR_BYTES_MAX);
      const response = await this.#body.stream(this.#url(path), limit, (piece, status) => {
        if (status >= 400) return false;
        writer.write(piece);
        return true;
      });
      this.#require(path, response.status);
      writer.flush();
      writer.close();
      return { path: target, bytes: response.bytes, release: () => removePath(target) };
    } catch (error) {
      writer.close();
      removePath(target);
      throw error;
    }
  }

  close(): void {
    this.#folder?.remove();
    this.#folder = undefined;
  }

  #url(path: string): string {
    return `${this.location}/${path}`;
  }

  #require(path: string, status: number): void {
    if (status === 200) return;
    const isMissing = status === 404 || status === 410;
    throw new CubeError(
      isMissing ? 'NOT_FOUND' : 'UNAVAILABLE',
      `${this.#url(path)}: ${isMissing ? 'no such file' : 'the server failed'} (HTTP ${status})`,
    );
  }
}

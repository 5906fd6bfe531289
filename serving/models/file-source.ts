/**
 * Serving one ONNX file (`--model`): the source that reloads it when it changes. The first content
 * is version 1, the next one version 2. A change of the file or of its external data is loaded once
 * both are the same in two polls, so that a file that is still being copied is left alone.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { fileExists, getFileStamp, readFile } from '../../lib/platform/files.ts';
import type { PlainModel } from './plain-model.ts';
import { type DesiredVersion, makeSingleVersion, type VersionSource } from './version-source.ts';

export class FileSource implements VersionSource {
  readonly channels: readonly [string] = ['stable'];
  readonly #path: string;
  /** Files with the data of the model that was read last. */
  #dataPaths: readonly string[] = [];
  /** Stamps of all files: of the served content, and of the last poll. */
  #served: string | undefined;
  #seen: string | undefined;
  #number = 1;

  constructor(path: string) {
    this.#path = path;
  }

  async read(): Promise<DesiredVersion | undefined> {
    // A missing file is being replaced.
    if (!fileExists(this.#path)) return this.#served === undefined ? undefined : this.#current;
    const stamp = this.#stampFiles(getFileStamp(this.#path));
    const isSettled = stamp === this.#seen;
    this.#seen = stamp;
    if (this.#served === undefined) this.#served = stamp;
    else if (stamp !== this.#served && isSettled) {
      this.#served = stamp;
      this.#number++;
    }
    return this.#current;
  }

  async explainMissing(): Promise<string> {
    return `${this.#path} does not exist; copy the model there`;
  }

  /** @throws CubeError NOT_FOUND, UNSUPPORTED, CORRUPT, IO */
  async readModel(): Promise<PlainModel> {
    // A process listens before it reads a model.
    const external = await import('./external-data.ts');
    if (!fileExists(this.#path)) {
      throw new CubeError('NOT_FOUND', `${this.#path} does not exist; copy the model there`);
    }
    // A file that changes while it is read has another stamp in the next poll.
    const modelStamp = getFileStamp(this.#path);
    const model = readFile(this.#path, external.MODEL_BYTES_MAX);
    const locations = external.listExternalFiles(model, this.#path);
    this.#dataPaths = external.listDataPaths(this.#path, locations);
    this.#served = this.#stampFiles(modelStamp);
    return { model, data: external.readExternalData(this.#path, locations) };
  }

  #stampFiles(modelStamp: string | undefined): string {
    return [modelStamp, ...this.#dataPaths.map(getFileStamp)].join(' ');
  }

  get #current(): DesiredVersion {
    return makeSingleVersion(String(this.#number));
  }
}

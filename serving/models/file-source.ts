/**
 * Serving one ONNX file (`--model`): the source that reloads it when it changes. The first content
 * is version 1, the next one version 2. A change of the file or of its external data is loaded once
 * both are the same in two polls, so that a file that is still being copied is left alone.
 */
import { basename } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { fileExists, getFileStamp, readFile } from '../../lib/platform/files.ts';
import type { PlainModel } from './plain-model.ts';
import { type DesiredVersion, makeSingleVersion, type VersionSource } from './version-source.ts';

const FILE_BYTES_MAX = 2 ** 31 - 1;

export class FileSource implements VersionSource {
  readonly channels: readonly [string] = ['stable'];
  readonly #path: string;
  readonly #dataPath: string;
  /** Stamps of both files: of the served content, and of the last poll. */
  #served: string | undefined;
  #seen: string | undefined;
  #number = 1;

  constructor(path: string) {
    this.#path = path;
    this.#dataPath = `${path}.data`;
  }

  async read(): Promise<DesiredVersion | undefined> {
    // A missing file is being replaced.
    if (!fileExists(this.#path)) return this.#served === undefined ? undefined : this.#current;
    const stamp = `${getFileStamp(this.#path)} ${getFileStamp(this.#dataPath)}`;
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

  /** @throws CubeError NOT_FOUND, IO */
  readModel(): PlainModel {
    if (!fileExists(this.#path)) {
      throw new CubeError('NOT_FOUND', `${this.#path} does not exist; copy the model there`);
    }
    const model = readFile(this.#path, FILE_BYTES_MAX);
    if (!fileExists(this.#dataPath)) return { model, data: new Map() };
    const data = readFile(this.#dataPath, FILE_BYTES_MAX);
    return { model, data: new Map([[basename(this.#dataPath), data]]) };
  }

  get #current(): DesiredVersion {
    return makeSingleVersion(String(this.#number));
  }
}

/**
 * Serving one ONNX file (`--model`): the source that reloads it when it changes. The first content
 * is version 1, the next one version 2. A change of the file or of its external data is loaded once
 * both are the same in two polls, so that a file that is still being copied is left alone.
 */
import { dirname, join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { fileExists, getFileStamp, readFile } from '../../lib/platform/files.ts';
import { listExternalFiles } from '../../proto/onnx-external.ts';
import { isBesideModel, MODEL_BYTES_MAX, readExternalData } from './external-data.ts';
import type { PlainModel } from './plain-model.ts';
import { type DesiredVersion, makeSingleVersion, type VersionSource } from './version-source.ts';

export class FileSource implements VersionSource {
  readonly channels: readonly [string] = ['stable'];
  readonly #path: string;
  /** Locations of the data of the model that was read last, as the model has them. */
  #locations: readonly string[] = [];
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

  /** @throws CubeError NOT_FOUND, IO */
  readModel(): PlainModel {
    if (!fileExists(this.#path)) {
      throw new CubeError('NOT_FOUND', `${this.#path} does not exist; copy the model there`);
    }
    // A file that changes while it is read has another stamp in the next poll.
    const modelStamp = getFileStamp(this.#path);
    const model = readFile(this.#path, MODEL_BYTES_MAX);
    this.#locations = listExternalFiles(model, this.#path);
    this.#served = this.#stampFiles(modelStamp);
    return { model, data: readExternalData(this.#path, this.#locations) };
  }

  #stampFiles(modelStamp: string | undefined): string {
    const names = this.#locations.filter(isBesideModel);
    const paths = names.map((name) => join(dirname(this.#path), name));
    return [modelStamp, ...paths.map(getFileStamp)].join(' ');
  }

  get #current(): DesiredVersion {
    return makeSingleVersion(String(this.#number));
  }
}

/**
 * One version in a folder of its own, seen as a repository: manifest.json and the version's files directly in it, and its layers
 * in `layers/<table>/`, `layers/`, `<table>/` or beside them. A version's folder inside a repository is such a folder too: its layers
 * are where the repository has them. Nothing is ever written.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { fileExists } from '../../lib/platform/files.ts';
import { FolderBackend } from '../../lib/repository/folder-backend.ts';

export class ExportedFolder extends FolderBackend {
  /** Where a path of the repository's layout (lib/repository/layout.ts) lies in this folder. */
  override localPath(path: string): string {
    const [, kind, first, second] = path.split('/');
    if (kind === 'versions') return join(this.location, second ?? '');
    if (kind !== 'layers' || first === undefined) return join(this.location, kind ?? '');
    const file = second ?? '';
    const places = [
      join(this.location, 'layers', first, file),
      join(this.location, 'layers', file),
      join(this.location, first, file),
      join(this.location, file),
      join(this.location, '..', '..', 'layers', first, file),
    ];
    return places.find(fileExists) ?? places[0]!;
  }

  override async putIfAbsent(): Promise<boolean> {
    return this.#refuseWriting();
  }

  override async putFileIfAbsent(): Promise<boolean> {
    return this.#refuseWriting();
  }

  override async removeUnfinished(): Promise<void> {
    this.#refuseWriting();
  }

  #refuseWriting(): never {
    const text = `${this.location} is one version's folder: it is only read; publish into a repository`;
    throw new CubeError('UNSUPPORTED', text);
  }
}

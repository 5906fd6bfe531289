/** Opens the backend for the location of a repository. */
import { resolve } from 'node:path';
import { CubeError } from '../core/errors.ts';
import { makeFolder } from '../platform/files.ts';
import type { Backend } from './backend.ts';
import { FolderBackend, requireFolder } from './folder-backend.ts';
import { HttpBackend } from './http-backend.ts';
import { S3Backend } from './s3-backend.ts';

/**
 * @param location a folder or a URL
 * @param create creates a missing folder
 * @throws CubeError NOT_FOUND, INVALID_ARGUMENT; UNSUPPORTED for another scheme
 */
export function openBackend(location: string, create: boolean): Backend {
  const scheme = /^([a-z][a-z0-9+]+):\/\//i.exec(location)?.[1]?.toLowerCase();
  if (scheme === 'http' || scheme === 'https') return new HttpBackend(location);
  if (scheme === 's3') return new S3Backend(location);
  if (scheme !== undefined) {
    throw new CubeError(
      'UNSUPPORTED',
      `unknown scheme ${scheme}://; a repository is a folder, http(s)://… or s3://…`,
    );
  }
  const folder = resolve(location);
  if (create) makeFolder(folder);
  requireFolder(folder);
  return new FolderBackend(folder);
}

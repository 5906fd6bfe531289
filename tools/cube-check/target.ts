/**
 * Parses the argument of cube-check: a file, version, bundle, repository, bucket, URL or server.
 */
import { basename, dirname, resolve } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { checkName } from '../../lib/core/names.ts';
import { isFolder, statPath } from '../../lib/platform/files.ts';
import { parseVersionFolder } from '../../lib/repository/version-folder.ts';
import { parseEndpoint } from '../../lib/rpc/endpoint.ts';

export type Target =
  | { readonly kind: 'layer'; readonly path: string }
  | { readonly kind: 'server'; readonly address: string }
  | {
      /** `listed`: a folder or bucket; `url`: a web server, whose folders cannot be listed. */
      readonly kind: 'listed' | 'url';
      readonly root: string;
      readonly bundle: string | undefined;
      readonly version: string | undefined;
    };

/** @throws CubeError INVALID_ARGUMENT if it is none of them; NOT_FOUND */
export function findTarget(text: string): Target {
  if (/^https?:\/\//i.test(text)) return urlTarget(text);
  if (/^s3:\/\//i.test(text)) return bucketTarget(text);
  const stat = statPath(text);
  if (stat === undefined) {
    if (/^[^/\\]+:\d+$/.test(text)) {
      parseEndpoint(text);
      return { kind: 'server', address: text };
    }
    throw new CubeError('NOT_FOUND', `${text}: no such file or folder`);
  }
  if (stat.isFolder) return folderTarget(resolve(text));
  const path = resolve(text);
  const isManifest = basename(path) === 'manifest.json';
  return isManifest ? versionTarget(dirname(path)) : { kind: 'layer', path };
}

function folderTarget(folder: string): Target {
  if (basename(dirname(folder)) === 'versions') return versionTarget(folder);
  const isBundle = ['versions', 'layers', 'channels'].some(
    (name) => isFolder(`${folder}/${name}`) && !isFolder(`${folder}/${name}/versions`),
  );
  if (!isBundle) return { kind: 'listed', root: folder, bundle: undefined, version: undefined };
  const bundle = checkName(basename(folder), 'bundle');
  return { kind: 'listed', root: dirname(folder), bundle, version: undefined };
}

function versionTarget(folder: string): Target {
  return { kind: 'listed', ...parseVersionFolder(folder) };
}

/** The options of an S3 location follow a question mark, and belong to the repository. */
function bucketTarget(text: string): Target {
  const [path = '', ...options] = text.split('?');
  const query = options.map((option) => `?${option}`).join('');
  const [, root, bundle, version] = MANIFEST_URL.exec(path) ?? [];
  if (root === undefined || bundle === undefined || version === undefined) {
    return { kind: 'listed', root: text, bundle: undefined, version: undefined };
  }
  checkName(bundle, 'bundle');
  checkName(version, 'version');
  return { kind: 'listed', root: root + query, bundle, version };
}

const MANIFEST_URL = /^(.+)\/([^/]+)\/versions\/([^/]+?)(?:\/(?:manifest\.json)?)?$/;

function urlTarget(text: string): Target {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || url.search !== '' || url.hash !== '' || url.username !== '') {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${text}: expected http(s)://host/path without a query, a fragment or a user`,
    );
  }
  const [, root, bundle, version] = MANIFEST_URL.exec(url.href) ?? [];
  if (root === undefined || bundle === undefined || version === undefined) {
    return { kind: 'url', root: url.href, bundle: undefined, version: undefined };
  }
  checkName(bundle, 'bundle');
  checkName(version, 'version');
  return { kind: 'url', root, bundle, version };
}

/** Checks layers against the manifests that name them. A layer shared by versions is read once. */
import { basename } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type { LayerHeader } from '../../lib/core/layer-format.ts';
import { type Manifest, requireStoredForm } from '../../lib/core/manifest.ts';
import { CONTENT_ID_PATTERN } from '../../lib/core/names.ts';
import { isSealedFile } from '../../lib/platform/sealed-file.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import type { RepositoryChecks } from '../../lib/repository/repository-checks.ts';
import { requireContent } from '../../lib/repository/verified-copy.ts';
import { checkLayerFile, type LayerFault } from '../../lib/store/layer-check.ts';
import { checkLayerHeader, type RequiredLayer } from '../../lib/store/load-files.ts';
import type { CheckReport } from './check-report.ts';
import { asMissing, type CheckSource, type LocalFile, toLocation } from './source.ts';

/** At most this many damaged blocks of one file are listed. */
const LISTED_BLOCKS_MAX = 100;

/** A layer file that could be read. */
interface CheckedLayer {
  readonly header: LayerHeader | undefined;
  readonly bytes: number;
  readonly sha256: string;
  readonly isSealed: boolean;
}

export interface LayerChecksOptions {
  readonly source: CheckSource;
  readonly bundle: string;
  readonly deep: boolean;
  readonly report: CheckReport;
  readonly checks: RepositoryChecks;
}

export class LayerChecks {
  readonly #options: LayerChecksOptions;
  /** By table and contentId; undefined for a layer that could not be read. */
  readonly #checked = new Map<string, CheckedLayer | undefined>();
  /** Messages reported so far: versions that share a layer report a problem of it once. */
  readonly #reported = new Set<string>();

  constructor(options: LayerChecksOptions) {
    this.#options = options;
  }

  /** Whether a checked version has the layer. */
  isReferenced(table: string, contentId: string): boolean {
    return this.#checked.has(`${table}/${contentId}`);
  }

  /** Checks that the layer is sound and is what this version's manifest says. */
  async check(manifest: Manifest, required: RequiredLayer, shard: number): Promise<void> {
    const { version } = manifest;
    const { source, bundle } = this.#options;
    const { table, layer } = required;
    const path = layerPath(bundle, table.name, layer.contentId);
    const key = `${table.name}/${layer.contentId}`;
    if (!this.#checked.has(key)) {
      this.#checked.set(key, await this.#read(path, version, layer.bytes));
    }
    const checked = this.#checked.get(key);
    if (checked === undefined) return;
    const where = toLocation(source, path);
    const user = `version ${version}, table ${table.name}, shard ${shard}`;
    const { header } = checked;
    this.#try(() => requireContent(where, checked, layer), version, where, user);
    this.#try(() => requireStoredForm(manifest, checked.isSealed, where), version, where, user);
    if (header === undefined) return;
    this.#try(() => checkLayerHeader(header, required, shard), version, where, user);
  }

  /** @param user the version, table and shard that have the layer, for the message */
  #try(check: () => void, version: string, where: string, user: string): void {
    try {
      check();
    } catch (error) {
      const { code, message } = CubeError.from(error);
      if (this.#reported.has(message)) return;
      this.#reported.add(message);
      const withUser = new CubeError(code, `${message} (${user})`);
      this.#options.checks.reportLayerError(version, where, withUser);
    }
  }

  async #read(path: string, version: string, bytes: number): Promise<CheckedLayer | undefined> {
    const { source, deep, report, checks } = this.#options;
    const where = toLocation(source, path);
    let file: LocalFile | undefined;
    try {
      file = await source.open(path, bytes);
      return checkFile(file.path, where, deep, report);
    } catch (error) {
      checks.reportLayerError(version, where, asMissing(error, where));
      return undefined;
    } finally {
      file?.release();
    }
  }
}

/** Checks a layer file by itself. @param where its name in the report; `path` may be a copy */
function checkFile(path: string, where: string, deep: boolean, report: CheckReport): CheckedLayer {
  const onBytes = (bytes: number): void => report.addBytes(bytes);
  const { faults, ...checked } = checkLayerFile(path, { deep, onBytes });
  report.checked.layers += 1;
  for (const fault of faults.slice(0, LISTED_BLOCKS_MAX)) addFault(fault, path, where, report);
  const more = faults.length - LISTED_BLOCKS_MAX;
  if (more > 0) {
    report.addProblem(where, `has ${more} more damaged blocks`, { todo: 'fetch it again' });
  }
  return { ...checked, isSealed: isSealedFile(path) };
}

/**
 * Checks a layer file without a manifest: its name must be its content id.
 * @param original name and place of the file that `path` is a copy of
 * @returns its header; undefined if it cannot be read
 */
export function checkLayerByName(
  path: string,
  deep: boolean,
  report: CheckReport,
  original: { readonly contentId: string; readonly where: string } = {
    contentId: basename(path, '.cube'),
    where: path,
  },
): LayerHeader | undefined {
  const { contentId, where } = original;
  const { header } = checkFile(path, where, deep, report);
  if (header !== undefined && CONTENT_ID_PATTERN.test(contentId)) {
    if (contentId === header.contentId) return header;
    const what = `contains layer ${header.contentId}, but its name is of another layer`;
    report.addProblem(where, what, { todo: 'fetch it again' });
  }
  return header;
}

/** Replaces the path of the file that was read, which may be a copy, in the message. */
function addFault(
  { error, block, offset }: LayerFault,
  path: string,
  where: string,
  report: CheckReport,
): void {
  const location = block === undefined || offset === undefined ? {} : { block, offset };
  const message = error.message.replaceAll(path, where);
  report.addError(where, new CubeError(error.code, message), location);
}

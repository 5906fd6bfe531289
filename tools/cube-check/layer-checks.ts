/** Layers of a bundle against the manifests that name them: each file is read once, however many versions share it. */
import { basename } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type { LayerHeader } from '../../lib/core/layer-format.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { CONTENT_ID_PATTERN } from '../../lib/core/names.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import { checkLayerFile, type LayerFault } from '../../lib/store/layer-check.ts';
import { checkHeader, type WantedLayer } from '../../lib/store/wanted-layers.ts';
import type { Findings } from './findings.ts';
import { type LocalFile, placeOf, type Source } from './source.ts';

/** Of damaged blocks of one file, so many are listed. */
const BLOCKS_LISTED_MAX = 100;

/** A layer file that could be read. */
interface ReadLayer {
  readonly header: LayerHeader | undefined;
  readonly bytes: number;
  readonly sha256: string;
}

export class LayerChecks {
  readonly #source: Source;
  readonly #bundle: string;
  readonly #deep: boolean;
  readonly #findings: Findings;
  /** By table and contentId; null when it could not be read. */
  readonly #known = new Map<string, ReadLayer | null>();
  /** What was said of a layer, so that versions that share it do not say it again. */
  readonly #said = new Set<string>();

  constructor(source: Source, bundle: string, deep: boolean, findings: Findings) {
    this.#source = source;
    this.#bundle = bundle;
    this.#deep = deep;
    this.#findings = findings;
  }

  /** Whether some version that was checked names the layer. */
  isNamed(table: string, contentId: string): boolean {
    return this.#known.has(`${table}/${contentId}`);
  }

  /** Checks a layer, and that it is what this version says. */
  async check(manifest: Manifest, wanted: WantedLayer, shard: number): Promise<void> {
    const { table, layer } = wanted;
    const path = layerPath(this.#bundle, table.name, layer.contentId);
    const place = placeOf(this.#source, path);
    const known = await this.#read(`${table.name}/${layer.contentId}`, path, layer.bytes);
    if (known === null) return;
    const who = `version ${manifest.version}, table ${table.name}, shard ${shard}`;
    const remedy = 'fetch or build it again';
    if (known.bytes !== layer.bytes) {
      this.#say(
        place,
        `${place}: ${known.bytes} bytes, the manifest says ${layer.bytes} (${who}); ${remedy}`,
      );
    } else if (known.sha256 !== layer.sha256) {
      this.#say(
        place,
        `${place}: SHA-256 ${known.sha256}, the manifest says ${layer.sha256} (${who}); ${remedy}`,
      );
    }
    if (known.header === undefined) return;
    try {
      checkHeader(known.header, wanted, shard);
    } catch (error) {
      this.#say(place, `${place}: ${CubeError.from(error).message} (${who})`);
    }
  }

  async #read(key: string, path: string, bytes: number): Promise<ReadLayer | null> {
    const known = this.#known.get(key);
    if (known !== undefined) return known;
    const place = placeOf(this.#source, path);
    let read: ReadLayer | null = null;
    let file: LocalFile | undefined;
    try {
      file = await this.#source.open(path, bytes);
      read = checkFile(file.path, place, this.#deep, this.#findings);
    } catch (error) {
      const { code, message } = CubeError.from(error);
      const absent = `${place} is missing; fetch it again, or publish the version again`;
      this.#findings.problem(place, code === 'NOT_FOUND' ? absent : message, code);
    } finally {
      file?.release();
    }
    this.#known.set(key, read);
    return read;
  }

  #say(place: string, message: string): void {
    if (this.#said.has(message)) return;
    this.#said.add(message);
    this.#findings.problem(place, message);
  }
}

/** Checks a layer file by itself. @param place what to call it */
function checkFile(path: string, place: string, deep: boolean, findings: Findings): ReadLayer {
  const onBytes = (bytes: number): void => findings.addBytes(bytes);
  const { faults, ...read } = checkLayerFile(path, { deep, onBytes });
  findings.checked.layers += 1;
  for (const fault of faults.slice(0, BLOCKS_LISTED_MAX)) addFault(fault, path, place, findings);
  const more = faults.length - BLOCKS_LISTED_MAX;
  if (more > 0) findings.problem(place, `${place}: ${more} more damaged blocks; fetch it again`);
  return read;
}

/** Checks a layer file that no manifest speaks of: its name says its content. @returns its header, when it can be read */
export function checkNamedFile(
  path: string,
  deep: boolean,
  findings: Findings,
): LayerHeader | undefined {
  const { header } = checkFile(path, path, deep, findings);
  const name = basename(path, '.cube');
  if (header !== undefined && CONTENT_ID_PATTERN.test(name) && name !== header.contentId) {
    findings.problem(
      path,
      `${path}: holds layer ${header.contentId}, which its name does not say; fetch it again`,
    );
  }
  return header;
}

/** Messages name the file that was read, which may be a copy. */
function addFault(
  { error, block, offset }: LayerFault,
  path: string,
  place: string,
  findings: Findings,
): void {
  const where = block === undefined || offset === undefined ? {} : { block, offset };
  const message = error.message.replaceAll(path, place);
  findings.failed(place, new CubeError(error.code, message), where);
}

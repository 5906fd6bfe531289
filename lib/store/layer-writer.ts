/**
 * Puts a finished layer at its path. Without encryption the layer was written to a temporary file,
 * which is renamed. With encryption it is collected in memory and written sealed, so that no clear
 * row reaches the disk.
 */
import { CubeError } from '../core/errors.ts';
import { computeSealedBytes } from '../core/sealed-format.ts';
import { getSealingKey } from '../platform/encryption-keys.ts';
import { fileExists, RandomAccessWriter } from '../platform/files.ts';
import {
  type ClearContent,
  hashFile,
  isSealedFile,
  readSealedHeader,
  sealPieces,
} from '../platform/sealed-file.ts';

const CHUNK_BYTES = 1 << 20;

/** The stored file: its length and SHA-256. */
export interface StoredFile {
  readonly bytes: number;
  readonly sha256: string;
}

/** Bytes at positions, until they are committed or dropped. */
export interface LayerWriter {
  writeAt(bytes: Uint8Array, position: number): void;
  readInto(target: Uint8Array, position: number): void;
  /**
   * Puts the layer at its path; an existing file is kept.
   * @throws CubeError CONFLICT if a file with the content exists there, but is not encrypted as
   *   this process would
   */
  commitLayer(path: string, content: ClearContent): StoredFile;
  abort(): void;
}

/** @param path in the folder of the layer */
export function createLayerWriter(path: string): LayerWriter {
  return getSealingKey() === undefined ? new ClearLayerWriter(path) : new SealedLayerWriter();
}

class ClearLayerWriter extends RandomAccessWriter implements LayerWriter {
  commitLayer(path: string, { bytes, sha256 }: ClearContent): StoredFile {
    if (!fileExists(path)) {
      this.commit(path);
    } else {
      this.abort();
      if (isSealedFile(path)) {
        throw new CubeError(
          'CONFLICT',
          `${path}: an encrypted version has published this layer; build with ` +
            '--encrypt-key-file too, or under another bundle',
        );
      }
    }
    return { bytes, sha256 };
  }
}

class SealedLayerWriter implements LayerWriter {
  #chunks: Uint8Array[] = [];

  writeAt(bytes: Uint8Array, position: number): void {
    this.#visit(bytes.length, position, (chunk, from, done, length) => {
      chunk.set(bytes.subarray(done, done + length), from);
    });
  }

  readInto(target: Uint8Array, position: number): void {
    this.#visit(target.length, position, (chunk, from, done, length) => {
      target.set(chunk.subarray(from, from + length), done);
    });
  }

  commitLayer(path: string, content: ClearContent): StoredFile {
    const key = getSealingKey();
    if (key === undefined) throw new CubeError('INTERNAL', 'the encryption key is gone');
    try {
      if (fileExists(path)) return adoptSealedLayer(path, content);
      const writer = new RandomAccessWriter(path);
      try {
        let position = 0;
        for (const piece of sealPieces(content, this.#pieces(content.bytes), key)) {
          writer.writeAt(piece, position);
          position += piece.length;
        }
        writer.commit(path);
      } catch (error) {
        writer.abort();
        throw error;
      }
      return { bytes: computeSealedBytes(content.bytes), sha256: hashFile(path) };
    } finally {
      this.abort();
    }
  }

  abort(): void {
    for (const chunk of this.#chunks) chunk.fill(0);
    this.#chunks = [];
  }

  *#pieces(bytes: number): Generator<Uint8Array> {
    for (let at = 0, i = 0; at < bytes; at += CHUNK_BYTES, i++) {
      yield this.#chunk(i).subarray(0, Math.min(CHUNK_BYTES, bytes - at));
    }
  }

  #visit(
    bytes: number,
    position: number,
    visit: (chunk: Uint8Array, from: number, done: number, length: number) => void,
  ): void {
    for (let done = 0; done < bytes; ) {
      const at = position + done;
      const number = Math.floor(at / CHUNK_BYTES);
      const from = at - number * CHUNK_BYTES;
      const length = Math.min(bytes - done, CHUNK_BYTES - from);
      visit(this.#chunk(number), from, done, length);
      done += length;
    }
  }

  #chunk(number: number): Uint8Array {
    while (this.#chunks.length <= number) this.#chunks.push(new Uint8Array(CHUNK_BYTES));
    return this.#chunks[number]!;
  }
}

/** Uses the file that an earlier build sealed, perhaps with an older key. */
function adoptSealedLayer(path: string, { contentId }: ClearContent): StoredFile {
  const header = readSealedHeader(path);
  if (header === undefined) {
    throw new CubeError(
      'CONFLICT',
      `${path}: a version without encryption has published this layer, and versions share equal ` +
        'layers; publish the encrypted version under another bundle or in another repository',
    );
  }
  if (header.contentId !== contentId) {
    throw new CubeError(
      'CORRUPT',
      `${path}: is layer ${header.contentId}; remove this damaged file and build again`,
    );
  }
  return { bytes: computeSealedBytes(header.clearBytes), sha256: hashFile(path) };
}

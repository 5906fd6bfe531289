/**
 * Reads a layer file once from start to end: its SHA-256, and every block whose checksum does not
 * match.
 */
import { createHash, type Hash } from 'node:crypto';
import { CubeError } from '../core/errors.ts';
import { BLOCK_BYTES, HEADER_BYTES, type LayerHeader } from '../core/layer-format.ts';
import { getFileBytes, RandomAccessReader } from '../platform/files.ts';
import { hashFile, isSealedFile } from '../platform/sealed-file.ts';
import { BlockHasher } from './block-hasher.ts';
import { openLayerFile } from './layer-open.ts';

/** Expected checksums of a file's blocks. */
export interface BlockChecksums {
  readonly header: LayerHeader;
  /** Two words per block: low, high. */
  readonly words: Uint32Array;
}

export interface BlockScan {
  readonly bytes: number;
  readonly sha256: string;
  /** Numbers of damaged blocks, ascending; empty when there are no checksums to compare with. */
  readonly damaged: readonly number[];
}

/**
 * @param checksums undefined when header or checksums are unusable: only the SHA-256 is computed
 * @param onBytes called with the bytes read since the last call
 */
export function scanBlocks(
  path: string,
  checksums: BlockChecksums | undefined,
  onBytes: (bytes: number) => void,
): BlockScan {
  if (isSealedFile(path)) return scanSealedBlocks(path, checksums, onBytes);
  const reader = new RandomAccessReader(path);
  const hasher = BlockHasher.acquire();
  const sha = createHash('sha256');
  const damaged: number[] = [];
  try {
    const end = checksums?.header.checksumsOffset ?? 0;
    let position = Math.min(HEADER_BYTES, reader.bytes);
    readAndHash(reader, 0, hasher.block.subarray(0, position), sha);
    while (position < reader.bytes) {
      const limit = position < end ? end : reader.bytes;
      const length = Math.min(BLOCK_BYTES, limit - position);
      readAndHash(reader, position, hasher.block.subarray(0, length), sha);
      if (checksums !== undefined && position < end) {
        const block = (position - HEADER_BYTES) / BLOCK_BYTES;
        const hash = hasher.hash(length);
        const { words } = checksums;
        const matches = hash[0] === words[2 * block] && hash[1] === words[2 * block + 1];
        if (!matches) damaged.push(block);
      }
      position += length;
      onBytes(length);
    }
    return { bytes: reader.bytes, sha256: sha.digest('hex'), damaged };
  } finally {
    reader.close();
    hasher.release();
  }
}

/** The SHA-256 is that of the stored file, the blocks are those of its content. */
function scanSealedBlocks(
  path: string,
  checksums: BlockChecksums | undefined,
  onBytes: (bytes: number) => void,
): BlockScan {
  const sha256 = hashFile(path);
  const bytes = getFileBytes(path);
  onBytes(bytes);
  const damaged: number[] = [];
  if (checksums === undefined) return { bytes, sha256, damaged };
  const { header, words } = checksums;
  const reader = openLayerFile(path);
  const hasher = BlockHasher.acquire();
  try {
    for (let block = 0; block < header.blockCount; block++) {
      const position = HEADER_BYTES + block * BLOCK_BYTES;
      const length = Math.min(BLOCK_BYTES, header.checksumsOffset - position);
      try {
        reader.readInto(hasher.block.subarray(0, length), position);
      } catch (error) {
        if (CubeError.from(error).code !== 'CORRUPT') throw error;
        damaged.push(block);
        continue;
      }
      const hash = hasher.hash(length);
      if (hash[0] !== words[2 * block] || hash[1] !== words[2 * block + 1]) damaged.push(block);
    }
    return { bytes, sha256, damaged };
  } finally {
    reader.close();
    hasher.block.fill(0);
    hasher.release();
  }
}

function readAndHash(
  reader: RandomAccessReader,
  position: number,
  target: Uint8Array,
  sha: Hash,
): void {
  reader.readInto(target, position);
  sha.update(target);
}

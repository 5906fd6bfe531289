/**
 * Byte offsets of the fields in the kernels' parameter blocks, and the numbers of dtypes. The
 * AssemblyScript kernels, the portable kernel and the code that fills the blocks read this file. It
 * has constants only, without types and imports, because both compilers must accept it.
 *
 * All fields are little-endian. `contract.ts` says what each kernel does with its block.
 */

/** Bytes of one segment's block. */
export const PARAMS_BYTES = 128;

// A segment's block. Inline segments and indexes use EMPTY_KEY and HOME_SLOTS; dense segments use
// FIRST_KEY, KEY_STEP, FIRST_ROW and ROW_COUNT.

/** u64: the key of empty slots (inline). */
export const EMPTY_KEY = 0;
/** u64: the key of row 0 of the layer (dense). */
export const FIRST_KEY = 0;
/** u64: the difference between the keys of neighbouring rows (dense). */
export const KEY_STEP = 8;
/** u64: home slots (inline). */
export const HOME_SLOTS = 16;
/** u64: number of the segment's first row (dense). */
export const FIRST_ROW = 24;
/** u64: rows of the segment (dense). */
export const ROW_COUNT = 32;
/** u32: address of the first slot or row. */
export const BASE_ADDRESS = 40;
/** u32: bytes from one slot or row to the next. */
export const STRIDE = 44;
/** u32: bytes of a row, a multiple of 4. */
export const ROW_BYTES = 48;
/** u32: index of the segment among the layer's. */
export const SEGMENT_INDEX = 52;
/** u32: segments of the layer. */
export const SEGMENT_COUNT = 56;
/** i32: log2(keyStep), or -1 when the step is not a power of two (dense). */
export const KEY_STEP_SHIFT = 64;
/** u32: index of the shard. */
export const SHARD_INDEX = 68;
/** u32: number of shards. */
export const SHARD_NUM = 72;

// The block of hashTexts and, at its start, of hashInput and readTsv.

/** u64: seed of the hash. */
export const HASH_SEED = 0;
/** u64: keys are hash mod this; 0 leaves the hash as it is. */
export const HASH_MODULO = 8;

// The block of hashInput.

/** u32: bytes of the longest text. */
export const TEXT_BYTES_MAX = 16;

// A slot of hashInput, which begins with its prefix and zeros.

/** u8: bytes of the prefix. */
export const TEXT_SLOT_LENGTH = 15;
/** u64: the key of an empty text. */
export const TEXT_SLOT_EMPTY_KEY = 16;
export const TEXT_SLOT_BYTES = 24;

// The block of readTsv.

/** u32: dense features of a line. */
export const TSV_DENSE_NUM = 16;
/** u32: slots of a line. */
export const TSV_SLOT_NUM = 20;
/** u32: address of the slots' prefixes, TSV_PREFIX_BYTES each; the last byte is the length. */
export const TSV_PREFIXES = 24;
/** u32: address of memory to hash in: the longest line and 32 bytes. */
export const TSV_STAGE = 28;
/** u32: not zero when lines begin with a label. */
export const TSV_LABELLED = 32;
/** u32: bytes of the longest line. */
export const TSV_LINE_MAX = 36;
/** u32: address of the keys, written. */
export const TSV_KEYS = 40;
/** u32: address of the dense values, written. */
export const TSV_DENSE = 44;
/** u32: address of the labels, written. */
export const TSV_LABELS = 48;
/** u32: address of the numbers left to the caller: u32 index of the value, start and end each. */
export const TSV_OTHER_NUMBERS = 52;
/** u32: how many numbers are left to the caller, written. */
export const TSV_OTHER_COUNT = 56;
/** u32: not zero when features contain bytes beyond ASCII, written. */
export const TSV_NON_ASCII = 60;
/** u32: address of the next line, written. */
export const TSV_NEXT_LINE = 64;
/** Bytes of a slot's prefix, its length included. */
export const TSV_PREFIX_BYTES = 16;

// Dtypes with elements, as a layer's header numbers them.

export const DTYPE_F32 = 0;
export const DTYPE_F16 = 1;
export const DTYPE_BF16 = 2;
export const DTYPE_I8 = 3;

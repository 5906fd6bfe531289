/** Types of the functions used from lz4js, which has none. */
declare module 'lz4js' {
  /** Returns the bytes written to `target`; 0 when the input is incompressible. */
  function compressBlock(
    source: Uint8Array,
    target: Uint8Array,
    start: number,
    length: number,
    hashTable: Uint32Array,
  ): number;
  const lz4: { compressBlock: typeof compressBlock };
  export default lz4;
}

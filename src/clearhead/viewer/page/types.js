// What goes between the modules. Only for readers and for `tsc --noEmit`: nothing here runs.

/**
 * @typedef {{role: string, score: number | null, null: number | null, threshold: number | null, labelled: boolean, error?: number | null}} Role
 * @typedef {{head: string, layer: number, index: number, role: string | null, roles: Role[], values: Record<string, number | null>,
 *   nulls?: Record<string, number | null>, errors?: Record<string, number | null>}} Head
 * @typedef {{layer: number, module: string, queries: number, keys: number, offset: number, crosses: boolean, exact: boolean,
 *   levels: number, contribution: boolean, kept: number, map: [number, number] | null, nulls: Record<string, number | null>}} Layer
 * @typedef {{key: string, label: string, unit: string, about: string}} Quantity
 * @typedef {{name: string, model: string, tokens: string[], prompt: number, part: string | null, gone: boolean,
 *   groups: {ids: number[], names: string[]} | null, quantities: Quantity[], layers: Layer[], heads: Head[], notable: string,
 *   rollout: boolean, bytes: {observed: number, pattern: number}, lookups?: [number, string, number, number][], left_out?: string[], token?: number, exact_heads?: string[],
 *   ranges?: Record<string, [number, number]>}} Doc
 * @typedef {Float32Array | Float64Array | Uint16Array | Uint8Array | Int32Array} Numbers
 * @typedef {{data: Numbers, shape: number[]}} Arr
 * @typedef {{facts: any, arrays: Record<string, Arr>}} Answer
 * @typedef {Record<string, string | number>} Parameters
 * @typedef {{ask: (question: string, parameters?: Parameters, signal?: AbortSignal) => Promise<Answer>}} Source
 * @typedef {Record<string, string>} Place
 * @typedef {{name: string, title: string}} Named
 */

export {};

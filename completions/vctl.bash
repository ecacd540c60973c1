# bash completion for vctl, printed by `vctl completion bash`; vctl itself knows the words.
_vctl() {
    local cur=${COMP_WORDS[COMP_CWORD]} word
    if [[ $cur == [=:] ]]; then cur=""; fi
    COMPREPLY=()
    while IFS=$'\t' read -r word _; do
        case $word in
            :dir) mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
            :file | :command*) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;&
            ":command $((COMP_CWORD - 1))") if [[ -n $cur ]]; then COMPREPLY+=($(compgen -c -- "$cur")); fi ;;
            :*) ;;
            "$cur"*) COMPREPLY+=("$word") ;;
        esac
        if [[ $word == :* ]]; then compopt -o filenames 2>/dev/null; fi
    done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _vctl vctl
